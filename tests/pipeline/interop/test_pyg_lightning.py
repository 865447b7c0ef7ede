"""PyG's data modules on Millrace's sampler, run by Lightning where it is installed."""

import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import millrace
from millrace.pipeline.interop import pyg_lightning
from millrace.storage.errors import InputError

try:
    import lightning.pytorch as pl
except ImportError:
    pl = None
needs_lightning = pytest.mark.skipif(pl is None, reason="lightning is not installed")


def graph() -> Data:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    same = torch.randint(100, (2, 3000), generator=rng) * 3 + torch.randint(3, (3000,), generator=rng)
    data = Data(x=torch.rand(300, 8, generator=rng) + F.one_hot(y, 8), y=y, edge_index=same)
    data.train_mask, data.val_mask = torch.arange(300) < 200, torch.arange(300) >= 200
    return data


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_a_trainer_of_the_other_package_is_told_of(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both packages are installed, and PyG derives from the first."""
    begin = {"__module__": f"{package}.pytorch.core", "__init__": lambda self, data, **options: None}
    theirs = SimpleNamespace(LightningNodeData=type("LightningDataModule", (), begin))
    monkeypatch.setattr(pyg_lightning, "import_module", lambda name: theirs)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", ModuleType("pytorch_lightning"))
    made = pyg_lightning._on_sampler.__wrapped__("LightningNodeData")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made(graph(), num_neighbors=[2])
    assert ["import lightning.pytorch as pl" in str(w.message) for w in told] == [True] * (package == "lightning")


def test_names_of_pyg_are_on_our_sampler() -> None:
    assert millrace.LightningNodeData is millrace.LightningNodeData
    with pytest.raises(AttributeError, match="has no attribute 'LightningData'"):
        _ = millrace.pipeline.interop.pyg_lightning.LightningData


if pl is not None:

    class Model(pl.LightningModule):
        """Two layers of GraphSAGE."""

        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = GraphSAGE(8, 16, num_layers=2, out_channels=3), 0

        def training_step(self, batch: Any, _: int) -> Any:
            out = self.net(batch.x, batch.edge_index)
            if "edge_label_index" in batch:
                score = (out[batch.edge_label_index[0]] * out[batch.edge_label_index[1]]).sum(-1)
                return F.binary_cross_entropy_with_logits(score, batch.edge_label)
            self.seen += batch.batch_size
            return F.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size])

        def validation_step(self, batch: Any, _: int) -> None:
            out = self.net(batch.x, batch.edge_index)[: batch.batch_size]
            hits = (out.argmax(-1) == batch.y[: batch.batch_size]).float().mean()
            self.log("val_acc", hits, batch_size=batch.batch_size, sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.05)


def trainer(**options: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(accelerator="cpu", max_epochs=4, **quiet, **options)


@needs_lightning
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 2])
def test_lightning_trains_nodes(ranks: int) -> None:
    module = millrace.LightningNodeData(
        graph(), num_neighbors=[5, 5], batch_size=32, eval_loader_kwargs={"num_neighbors": [-1, -1]}
    )
    assert isinstance(module.graph_sampler, millrace.PyGSampler)
    made = trainer(devices=ranks, strategy="auto" if ranks == 1 else "ddp_fork")
    model = Model()
    made.fit(model, module)
    assert made.callback_metrics["val_acc"] > 0.9
    assert ranks == 2 or model.seen == 4 * 200


@needs_lightning
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 2])
def test_lightning_trains_links(ranks: int) -> None:
    data = graph()
    module = millrace.LightningLinkData(
        data,
        input_train_edges=data.edge_index[:, :500],
        num_neighbors=[5],
        batch_size=100,
        neg_sampling="binary",
        loader="link_neighbor",
    )
    trainer(devices=ranks, strategy="auto" if ranks == 1 else "ddp_fork").fit(Model(), module)


@needs_lightning
def test_what_evaluation_cannot_change_is_refused() -> None:
    with pytest.raises(InputError, match="eval_loader_kwargs has disjoint; of the sampler only num_neighbors"):
        millrace.LightningNodeData(graph(), num_neighbors=[5], eval_loader_kwargs={"disjoint": True})
