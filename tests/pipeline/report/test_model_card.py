"""The model card of a run says what its files say."""

import json

import pytest

import millrace as mr


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset("sbm:nodes=200,classes=3,degree=6,features=4,train=0.4")


def rows(text):
    lines = [line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("| ")]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def test_a_card_has_the_facts_of_the_run(sbm, tmp_path):
    job = {"fanout": [3, 2], "hidden": 8, "epochs": 3, "batch_size": 32, "metrics": "macro_f1", "learned": 2}
    result = mr.run(sbm, out=tmp_path / "run", verbose=False, threads=1, **job)
    text = (tmp_path / "run" / "model_card.md").read_text()
    found, record = rows(text), json.loads((tmp_path / "run" / "result.json").read_text())
    assert text.startswith("# sage on sbm:")
    assert found["test accuracy"] == f"{record['test_accuracy']:.4f}"
    assert found["test macro_f1"] == f"{record['test_metrics']['macro_f1']:.4f}"
    numbers = sum(p.numel() for p in mr.load(result).model.parameters())
    assert found["parameters"] == f"{numbers:,} numbers in `model.pt`"
    assert found["splits"] == f"train {len(sbm.split.train)}, val {len(sbm.split.val)}, test {len(sbm.split.test)}"
    assert found["learnt features"] == "2 of each node, beside the features, in `learned.npy`"
    assert f"epoch {result.best_epoch + 1} was the best" in found["training"]
    assert "torch" in found["versions"] and "fanout = [3, 2]" in found["sampler"]
    support = [int(found[str(c)].split(" | ")[0]) for c in range(3)]
    assert sum(support) == len(sbm.split.test)


def test_own_code_is_named_in_place_of_what_it_replaces(sbm, tmp_path):
    import torch

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    mr.run(sbm, out=tmp_path / "run", optimizer=sgd, fanout=[3], hidden=8, epochs=1, verbose=False, threads=1,
        train={"evaluate_every": 0})  # fmt: skip
    found = rows((tmp_path / "run" / "model_card.md").read_text())
    assert "optimiser" not in found and "sgd" in found["own code"]
