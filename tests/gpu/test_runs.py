"""A run on a GPU survives a kill. Run with pytest -m gpu."""

from itertools import combinations

import pytest

from gptmini.runs.resume import find_training_state
from gptmini.training.callbacks.checkpoints import RunCheckpoints
from gpu.parts import TRY_ON_CPU
from training.watchers import Figures, Kill, KillAfter

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("compile", [True] if TRY_ON_CPU else [False, True])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(run, tmp_path, compile):
    options = {
        "max_steps": 9,
        "precision": "bf16",
        "dropout": 0.1,
        "optimizer": "muon",
        "compile": compile,
    }
    straight = [Figures() for _ in range(2 if TRY_ON_CPU else 3)]
    for i, losses in enumerate(straight):
        run(
            callbacks=[losses, RunCheckpoints(every_steps=4)],
            folder=tmp_path / f"straight-{i}",
            **options,
        )

    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "config.yaml").write_text("")

    kill = KillAfter(2 * 6)  # in step 6; a step has two micro-steps
    with pytest.raises(Kill):
        run(callbacks=[RunCheckpoints(every_steps=4), kill], folder=folder, **options)
    state, _ = find_training_state(folder)
    assert state.step == 4

    resumed = Figures()
    run(callbacks=[resumed, RunCheckpoints(every_steps=4)], folder=folder, state=state, **options)
    assert sorted(resumed.losses) == [5, 6, 7, 8, 9]

    apart = largest_difference(resumed, straight[0])
    pairs = combinations(straight, 2)
    by_themselves = max(largest_difference(one, other) for one, other in pairs)
    print(f"resumed differs by {apart:.2g}, straight runs by {by_themselves:.2g}")
    if TRY_ON_CPU:
        assert apart == by_themselves == 0

    # Kernels that sum in varying order make uninterrupted runs differ. The resumed run may differ a little more.
    allowed = 4 * by_themselves + 1e-3 if by_themselves else 0
    assert apart <= allowed


def test_a_short_run_is_not_compiled_and_measuring_it_changes_nothing(run):
    losses = []
    for compile in (False, "auto"):
        figures = Figures()
        options = {"precision": "bf16", "dropout": 0.1, "optimizer": "muon", "compile": compile}
        module = run(callbacks=[figures], max_steps=24, **options).lightning_module
        assert not module.hardware.compile
        losses.append(list(figures.losses.values()))
    print(module.hardware.reasons["compile"])
    assert losses[1] == pytest.approx(losses[0], abs=0 if TRY_ON_CPU else 1e-2)


def largest_difference(ours, theirs):
    return max(
        abs(ours.losses[step] - theirs.losses[step])
        for step in ours.losses.keys() & theirs.losses.keys()
    )
