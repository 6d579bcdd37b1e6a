"""`holdfast train`: bad input is one line and exit status 2, before anything is written."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.cli.commands.train import _last_lines, _plan, settings_from
from holdfast.cli.main import _parser, main
from holdfast.journal import opened_journal
from holdfast.records.errors import UsageError
from holdfast.tasks.read import read_tasks
from holdfast.training.advantages import OverlongPenalty
from holdfast.training.objective.objective import Clip, KlPlace
from holdfast.training.settings import TrainingRecord, TruncationPolicy
from support.paths import EXAMPLES

CALCULATOR = str(EXAMPLES / "calculator.py")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("holdfast.cli.commands.train.require", lambda *_, **__: None)
    (tmp_path / "train.jsonl").write_text(
        json.dumps({"id": "a", "prompt": "What is 1 + 2?", "ground_truth": "3"})
    )
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "own.py").write_text(
        "def mine(batch, objective):\n    return 0\n"
        "def short(batch):\n    return 0\n"
        "async def later(batch, objective):\n    return 0\n"
    )
    return tmp_path


def train_arguments(*more):
    fixed = ("--tasks", "train.jsonl", "--run", "first", "--out", "out", "--groups", "1")
    return ["train", CALCULATOR, *fixed, *more]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--samples", "1"], "samples=1 with a baseline of the group"),
        (["--loss", "best"], "no loss is called 'best'; there are grpo"),
        (["--loss", "own.py:yours"], "has no function 'yours'"),
        (["--loss", "own.py:short"], "the loss short(batch): too many positional arguments; it is"),
        (["--loss", "own.py:later"], "is async: write `def`; it is called as loss(batch, object"),
        (["--loss", "rloo", "--clip-low", "0.1"], "has no clip"),
        (["--clip-low", "3"], "clip low=3.0"),
        (["--correction", "tis"], "recompute_old"),
        (["--overlong-margin", "5"], "belongs to --overlong-length"),
        (["--overlong-penalty", "5"], "belongs to --overlong-length"),
        (["--lora-alpha", "5"], "belongs to --lora-rank"),
        (["--max-draws", "5"], "belongs to --dynamic"),
        (["--eval-every", "5"], "belongs to --eval-tasks"),
        (["--worker-cpus", "2"], "--worker-cpus belongs to --cluster"),
        (["--score-concurrency", "2"], "belongs to --score-workers"),
        (["--overlong-length", "5", "--overlong-margin", "6"], "margin=6 is above length=5"),
        (["--overlong-length", "5", "--overlong-penalty", "0"], "penalty=0.0 is not above 0"),
        (["--track", "mlflow"], "no tracker is called 'mlflow'"),
        (["--tasks", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--eval-tasks", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--model", "nowhere"], "nowhere"),
        (["--reference", "nowhere"], "KL coefficient is 0"),
        (["--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["--scorer", "missing"], "missing"),
        (["--device", "cuda:99"], "device 'cuda:99'"),
        (["--groups", "2"], "groups=2 is more than the 1 tasks"),
        (["--lora-targets", "q_proj"], "--lora-targets belongs to --lora-rank"),
        (["--kl-in-reward"], "need --kl C"),
        (["--eval-tasks", "empty.jsonl"], "empty.jsonl has no tasks"),
        (["--out", "train.jsonl"], "train.jsonl is a file; --out is a folder"),
        (["--out", "train.jsonl/x"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line(place, capsys, more, message):
    pytest.importorskip("torch")
    before = sorted(place.iterdir())
    assert main(train_arguments(*more)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert [path for path in sorted(place.iterdir()) if path not in before] in (
        [],
        [place / "__pycache__"],
    )


def test_without_names_the_run_and_its_folder_are_called_after_the_file(place, capsys):
    (place / "calculator-train-training-1").write_text("")
    assert main(["train", CALCULATOR, "--tasks", "train.jsonl", "--groups", "1"]) == 2
    assert "calculator-train-training-1 is a file; --out is a folder" in capsys.readouterr().err


def test_a_dry_run_checks_everything_and_writes_nothing(place, capsys):
    pytest.importorskip("torch")
    before = {path.name for path in place.iterdir()}
    assert main(train_arguments("--dry-run", "--samples", "4")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "training first: 40 steps, each of 1 task × 4 samples",
        "  folder: out, begins",
    ]
    assert "  loss: grpo" in lines
    assert "  scored by: Numeric" in lines
    assert any(line.startswith("  first prompt, of a:") for line in lines)
    assert {path.name for path in place.iterdir()} - before <= {"__pycache__"}
    assert main(train_arguments("--dry-run", "--samples", "1")) == 2
    assert "samples=1 with a baseline" in capsys.readouterr().err


def test_a_held_out_task_that_cannot_be_scored_is_named_by_its_line(place, capsys):
    pytest.importorskip("torch")
    (place / "agent.py").write_text(
        "import holdfast\nscore = holdfast.scorers.Numeric()\nasync def solve(t): ...\n"
    )
    rows = [{"prompt": "?", "ground_truth": truth} for truth in (1, "none")]
    (place / "held.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = train_arguments("--eval-tasks", "held.jsonl")
    assert main(["train", "agent.py", *arguments[2:]]) == 2
    assert "held.jsonl:2 (row-" in capsys.readouterr().err


def test_a_changed_training_without_a_name_is_the_next_one(place, tmp_path, capsys):
    pytest.importorskip("torch")

    def name(*more):
        arguments = ["train", CALCULATOR, "--tasks", "train.jsonl", "--groups", "1", *more]
        args = _parser().parse_args(arguments)
        tasks = read_tasks("train.jsonl")
        settings = settings_from(args)
        plan = _plan(args, settings, tasks)

        async def record():
            async with opened_journal(args.journal) as journal:
                if await journal.find_run(args.run) is None:
                    text = TrainingRecord(settings.identity).text
                    spec = structs.replace(plan.spec, training=text)
                    await journal.create_run(spec, (), sealed=False)

        asyncio.run(record())
        return args.run

    assert name() == name() == "calculator-train-training-1"
    assert name("--kl", "0.1") == "calculator-train-training-2"
    assert "coefficient" in capsys.readouterr().err
    assert name("--kl", "0.1") == "calculator-train-training-2"
    assert name("--temperature", "0.5") == "calculator-train-training-3"
    assert name("--temperature", "0.5", "--steps", "60") == "calculator-train-training-3"


@pytest.mark.parametrize(
    "more",
    [
        ["--learning-rate", "3"],
        ["--learning-rate", "nan"],
        ["--steps", "0"],
        ["--temperature", "0"],
        ["--discount", "1.5"],
        ["--overlong-length", "0"],
        ["--truncation", "cut"],
        ["--dtype", "int8"],
        ["--schedule", "square"],
        ["--lora-rank", "0"],
        ["--fail-on-permanent-failure"],
        ["--max-cost", "3"],
        ["--max-tokens-total", "0"],
    ],
)
def test_options_that_make_no_sense_are_refused_by_the_parser(place, capsys, more):
    with pytest.raises(SystemExit) as caught:
        main(train_arguments(*more))
    assert caught.value.code == 2
    assert more[0] in capsys.readouterr().err


def test_without_the_extra_the_line_says_how_to_install_it(place, capsys, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(place)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(train_arguments()) == 2
    assert "'.[train]'" in capsys.readouterr().err


def test_options_become_settings():
    args = _parser().parse_args(
        train_arguments("--loss", "dapo", "--kl", "0.1", "--kl-in-reward", "--clip-high", "0.3",
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


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--device", "cuda:99"], "device 'cuda:99'"), (["--model", "nowhere"], "nowhere")],
)
def test_beside_rollouts_bad_input_starts_no_engine(place, capsys, monkeypatch, more, message):
    pytest.importorskip("torch")
    monkeypatch.setattr("holdfast.cli.commands.pipeline.supervise", None)
    assert main(train_arguments("--async", *more)) == 2
    assert message in capsys.readouterr().err
    assert not (place / "out").exists()


def trained(**changes):
    pytest.importorskip("torch")
    from holdfast.training.run.metrics import TrainingReport

    made = {"run": "first", "steps": 3, "model": Path("out/weights/step-3"), "stopped": "",
            "rewards": [0.25, 0.5, 0.75], "held_out": {0: 0.5, 3: 0.875},
            "skipped_steps": 0}  # fmt: skip
    return TrainingReport(**made | changes)


def test_the_last_lines_say_what_was_learned_and_what_to_do_with_it():
    args = _parser().parse_args(train_arguments("--journal", "other.db"))
    assert _last_lines(args, trained()) == [
        "trained 3 steps: reward 0.250 to 0.750, held out 0.500 to 0.875",
        "the model:   out/weights/step-3",
        "serve it:    holdfast serve --model out/weights/step-3",
        "look at it:  holdfast report first --journal other.db [--out FILE.html]",
    ]
    args = _parser().parse_args(train_arguments())
    nothing = trained(steps=0, rewards=[], held_out={}, stopped="received SIGINT")
    assert _last_lines(args, nothing) == [
        "trained 0 steps of 40",
        "look at it:  holdfast report first [--out FILE.html]",
    ]


@pytest.mark.parametrize(
    ("rewards", "held_out", "is_better"),
    [
        ([0.5, 0.25, 1.0], {}, True),
        ([0.5, 0.5, 0.25, 0.75], {}, False),
        ([0.5, 0.25], {0: 0.5, 2: 0.75}, True),
        ([0.25, 0.75], {0: 0.5, 2: 0.5}, False),
    ],
)
def test_a_reward_that_did_not_rise_is_named(rewards, held_out, is_better):
    report = trained(rewards=rewards, held_out=held_out)
    lines = _last_lines(_parser().parse_args(train_arguments()), report)
    is_named = any(line.startswith("no better:   the reward did not rise in") for line in lines)
    assert is_named == (not is_better)


@pytest.mark.parametrize(("skipped", "message", "code"), [(0, "", 0), (2, "2", 0), (3, "all", 7)])
def test_a_training_that_trained_nothing_is_no_success(
    place, capsys, monkeypatch, skipped, message, code
):
    async def end(*arguments, **options):
        return trained(skipped_steps=skipped)

    monkeypatch.setattr("holdfast.training.run.train.train_plan", end)
    assert main(train_arguments()) == code
    line = f"{message} of them trained nothing: no gradient was finite"
    assert (line in capsys.readouterr().out) == bool(skipped)


@pytest.mark.parametrize(("flat", "code"), [(0, 0), (2, 0), (3, 7)])
def test_a_training_without_a_gradient_is_no_success(place, capsys, monkeypatch, flat, code):
    async def end(*arguments, **options):
        return trained(flat_steps=flat)

    monkeypatch.setattr("holdfast.training.run.train.train_plan", end)
    assert main(train_arguments()) == code
    line = "all of them trained nothing: all rewards of every group are equal; look at the scorer"
    assert (line in capsys.readouterr().out) == (code == 7)


@pytest.mark.parametrize(("begun", "code"), [(False, 2), (True, 5)])
def test_bad_input_that_is_found_in_a_step_has_changed_something(
    place, capsys, monkeypatch, begun, code
):
    pytest.importorskip("torch")

    async def fail(call):
        if begun:
            call.progress.roll_out(1, steps=2, settled=0)
        raise UsageError("token 7 is beyond the model's vocabulary of 5")

    monkeypatch.setattr("holdfast.training.run.train.train_plan", fail)
    assert main(train_arguments()) == code
    assert "token 7" in capsys.readouterr().err


def test_rewards_are_shaped_by_options():
    trainer = settings_from(_parser().parse_args(train_arguments())).trainer
    assert (trainer.truncation, trainer.overlong, trainer.discount) == ("keep", None, None)
    more = train_arguments("--truncation", "mask", "--overlong-length", "200", "--discount", "0.9")
    trainer = settings_from(_parser().parse_args(more)).trainer
    assert trainer.truncation is TruncationPolicy.MASK, "and not its name, which would be no policy"
    assert trainer.overlong == OverlongPenalty(200, 40)
    assert trainer.discount == 0.9
    more += ["--overlong-margin", "50", "--overlong-penalty", "0.5"]
    trainer = settings_from(_parser().parse_args(more)).trainer
    assert trainer.overlong == OverlongPenalty(200, 50, 0.5)
