"""What a training shows while it works."""

from holdfast.training.run.progress import TrainingProgress


def test_a_step_counts_its_own_trajectories_and_the_evaluation_its_own():
    progress = TrainingProgress()
    assert progress.line().startswith("loading the model, 0 s")
    assert progress.bar == (0, 0)
    progress.done_before, progress.total = 100, 100
    progress.roll_out(3, steps=40, settled=100)
    assert progress.line().startswith("step 3 of 40: rolling out, 0 s")
    progress.total, progress.running, progress.done = 116, 12, 4
    assert progress.bar == (4, 16)
    assert progress.line().startswith("step 3 of 40: rolling out, 4 of 16 trajectories, 12 running")
    progress.enter("step 3: training on 16 trajectories")
    assert progress.line() == "step 3: training on 16 trajectories, 0 s"
    assert progress.bar == (0, 0)
    evaluation = progress.evaluate(3)
    evaluation.total, evaluation.done = 200, 50
    assert progress.bar == (50, 200)
    assert progress.line().startswith("evaluating after step 3, 50 of 200 trajectories")


def test_what_a_resumed_step_had_settled_before_is_not_counted_again():
    progress = TrainingProgress()
    progress.roll_out(7, steps=40, settled=90)
    assert progress.bar == (0, 0), "the engine has not looked yet"
    progress.done_before, progress.total = 90, 112
    assert progress.bar == (0, 22)
