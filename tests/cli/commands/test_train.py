"""`holdfast train`: bad input is one line and exit status 2, before anything is written."""

import json

import pytest

from holdfast.cli.commands.train import settings_from
from holdfast.cli.main import _parser, main
from holdfast.training import extra
from holdfast.training.objective.objective import Clip, KlPlace
from support.paths import EXAMPLES

CALCULATOR = str(EXAMPLES / "calculator.py")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extra, "require", lambda: None)
    (tmp_path / "train.jsonl").write_text(json.dumps({"id": "a", "prompt": "What is 1 + 2?"}))
    (tmp_path / "own.py").write_text("def mine(batch, objective):\n    return 0\n")
    return tmp_path


def words(*more):
    fixed = ("--tasks", "train.jsonl", "--run", "first", "--out", "out")
    return ["train", CALCULATOR, *fixed, *more]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--samples", "1"], "samples=1 with a baseline of the group"),
        (["--loss", "best"], "no loss is called 'best'; there are grpo"),
        (["--loss", "own.py:yours"], "has no function 'yours'"),
        (["--loss", "rloo", "--clip-low", "0.1"], "has no clip"),
        (["--clip-low", "3"], "clip low=3.0"),
        (["--correction", "tis"], "recompute_old"),
        (["--track", "mlflow"], "no tracker is called 'mlflow'"),
        (["--tasks", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--eval-tasks", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--model", "nowhere"], "nowhere"),
        (["--reference", "nowhere"], "KL coefficient is 0"),
        (["--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["--scorer", "missing"], "missing"),
    ],
)
def test_bad_input_is_one_line(place, capsys, more, said):
    pytest.importorskip("torch")
    before = sorted(place.iterdir())
    assert main(words(*more)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert [path for path in sorted(place.iterdir()) if path not in before] in (
        [],
        [place / "__pycache__"],
    )


@pytest.mark.parametrize(
    "more",
    [
        ["--learning-rate", "3"],
        ["--learning-rate", "nan"],
        ["--steps", "0"],
        ["--temperature", "0"],
        ["--dtype", "int8"],
        ["--schedule", "square"],
        ["--lora-rank", "0"],
        ["--fail-on-permanent-failure"],
    ],
)
def test_options_that_make_no_sense_are_refused_by_the_parser(place, capsys, more):
    with pytest.raises(SystemExit) as caught:
        main(words(*more))
    assert caught.value.code == 2
    assert more[0] in capsys.readouterr().err


def test_without_the_extra_the_line_says_how_to_install_it(place, capsys, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(place)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(words()) == 2
    assert "'.[train]'" in capsys.readouterr().err


def test_options_become_settings():
    args = _parser().parse_args(
        words("--loss", "dapo", "--kl", "0.1", "--kl-in-reward", "--clip-high", "0.3",
              "--lora-rank", "4", "--lora-targets", "q_proj,v_proj", "--schedule", "cosine")
    )  # fmt: skip
    settings = settings_from(args)
    objective = settings.trainer.objective
    assert settings.dynamic, "DAPO samples dynamically"
    assert objective.clip == Clip(0.2, 0.3)
    assert (objective.kl.coefficient, objective.kl.place) == (0.1, KlPlace.REWARD)
    assert settings.lora is not None
    assert settings.lora.targets == ("q_proj", "v_proj")
    assert settings.trainer.optimizer.learning_rate == 1e-5
    assert settings.trainer.optimizer.schedule == "cosine"
