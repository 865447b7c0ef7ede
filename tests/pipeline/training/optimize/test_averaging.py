import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from millrace.pipeline.training.optimize.averaging import ParameterAverage


def moved(model, generator):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype))


def test_an_average_is_torchs_and_goes_on_from_its_state():
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).double()
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    average = ParameterAverage(dict(model.named_parameters()), 0.9)
    for step in range(6):
        moved(model, generator)
        reference.update_parameters(model)
        average.update()
        if step == 2:
            state = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in average.state_dict().items()}
            average = ParameterAverage(dict(model.named_parameters()), 0.9)
            average.load_state_dict(state)
    live = [p.clone() for p in model.parameters()]
    with average.in_place():
        for p, expected in zip(model.parameters(), reference.module.parameters()):
            torch.testing.assert_close(p, expected, rtol=0, atol=1e-12)
    for p, before in zip(model.parameters(), live):
        assert torch.equal(p, before)
