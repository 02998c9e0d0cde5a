"""gptmini prepare: what it says, what it accepts, and what it refuses."""

import re

import pytest

from commands.resuming.readings import assert_refused


def test_prepare_takes_the_overrides_of_train_and_prepares_its_very_tokens(script, short):
    prepared = script("prepare", *short)
    assert prepared.code == 0, prepared.err
    folder = re.match(r"(\S+), prepared now\n", prepared.out)[1]
    trained = script("train", *short)
    assert f"data     {folder}, prepared before\n" in trained.out


def test_prepare_takes_the_text_and_tokenizer_of_an_experiment(script):
    overrides = ("experiment=smoke", "data=text", "data.path=my.txt")
    prepared = script("prepare", *overrides)
    trained = script("train", *overrides, "console=lines")
    folder = re.match(r"(\S+), prepared now\n", prepared.out)[1]
    assert f"data     {folder}, prepared before\n" in trained.out


def test_verify_reads_a_prepared_folder_whole(script, prepared, tmp_path):
    assert script("prepare", *prepared).code == 0
    assert (
        ", prepared before, every checksum is right\n"
        in script("prepare", *prepared, "verify=true").out
    )


def test_a_changed_text_is_prepared_anew_and_the_change_is_named(script, prepared, tmp_path):
    first = script("prepare", *prepared)
    folder = re.match(r"(\S+), prepared now\n", first.out)[1]
    again = script("prepare", *prepared, "data.val_fraction=0.3")
    said = rf"preparing anew, because {folder} differs in data\.val_fraction \(\S+, now 0\.3\)\n"
    assert re.match(said, again.out)

    (tmp_path / "my.txt").write_text((tmp_path / "my.txt").read_text() + "More.")
    changed = script("prepare", *prepared)
    assert re.match(r"preparing anew, because \S+ differs in data\.files\n", changed.out)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "true"])
def test_a_number_of_workers_must_be_one(script, prepared, value):
    result = script("prepare", *prepared, f"num_workers={value}")
    assert_refused(result, "num_workers must be a whole number of at least 1, or auto, got ")
