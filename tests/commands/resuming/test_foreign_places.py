"""A resumed run neither downloads nor writes where only its run folder says so; an honest run folder goes on."""

import io
import shutil
import urllib.request
from pathlib import Path

import pytest
import yaml

from commands.resuming.kills import killed
from commands.resuming.readings import assert_refused
from run_folders import config_of, last, newest

pytestmark = pytest.mark.slow


@pytest.fixture
def asked(monkeypatch):
    """Addresses that were asked for a text; each answers with the same few words."""
    addresses = []

    def answer(url, timeout):
        addresses.append(url)
        return io.BytesIO(b"words that nobody published")

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    return addresses


def rewrite(**changes):
    """Change the configuration that the newest run keeps, as a stranger could."""
    path = newest() / "config.yaml"
    path.write_text(yaml.safe_dump(config_of(newest()) | changes))


def downloaded(**changes):
    """The configuration of the sample of Shakespeare, with changes."""
    own = Path(__file__).parents[3] / "configs" / "data" / "shakespeare.yaml"
    data = yaml.safe_load(own.read_text())
    return data | {"folder": "data/downloads"} | changes


def test_a_run_with_a_data_dir_of_its_own_goes_on_with_its_tokens(begin, resume, tmp_path):
    disk = tmp_path / "disk"
    with killed(1, "on_train_batch_end"):  # before the first checkpoint
        begin(f"data_dir={disk}")
    Path("data").mkdir()

    result = resume("trainer.max_steps=4")
    assert result.code == 0, result.err
    assert f"data     {disk}/" in result.out
    assert resume("trainer.max_steps=5").code == 0
    assert list(Path("data").iterdir()) == []


def test_tokens_are_prepared_again_in_the_folder_that_is_typed_alone(complete, resume, tmp_path):
    complete()
    shutil.rmtree("data")
    theirs = tmp_path / "theirs"
    rewrite(data_dir=str(theirs))

    said = f"only the run folder says where; if the place is yours, type data_dir={theirs}"
    assert_refused(resume("trainer.max_steps=9"), said)
    assert not theirs.exists()

    result = resume("trainer.max_steps=9", f"data_dir={theirs}")
    assert result.code == 0, result.err
    assert last(newest())["global_step"] == 9
    assert len(list(theirs.glob("text-byte-*"))) == 1


def test_tokens_are_prepared_again_in_gptminis_own_folder(complete, resume):
    complete()
    shutil.rmtree("data")
    result = resume("trainer.max_steps=9")
    assert result.code == 0, result.err
    assert "prepared now" in result.out


@pytest.mark.parametrize("theirs", ["url", "folder", "data_dir"])
def test_no_text_is_downloaded_from_or_into_a_place_of_a_stranger(
    complete, resume, asked, tmp_path, theirs
):
    complete()
    shutil.rmtree("data")
    place = str(tmp_path / "theirs")
    if theirs == "data_dir":
        rewrite(data=downloaded(folder=f"{place}/downloads"), data_dir=place)
    else:
        value = "http://localhost:1/theirs" if theirs == "url" else place
        rewrite(data=downloaded(**{theirs: value}))

    assert_refused(resume("trainer.max_steps=9"), "must be downloaded again, from data.url=")
    assert asked == []
    assert not Path(place).exists()
    assert not Path("data").exists()


def test_a_text_is_downloaded_from_gptminis_address_below_the_typed_folder(complete, resume, asked):
    complete()
    shutil.rmtree("data")
    for typed in ([], ["data_dir=there"]):
        rewrite(data=downloaded())
        assert_refused(resume("trainer.max_steps=9", *typed), "must be the published text")
    assert asked == [downloaded()["url"]] * 2


def test_a_text_that_is_there_already_is_read_wherever_it_lies(complete, resume, asked, tmp_path):
    complete()
    shutil.rmtree("data")
    folder = tmp_path / "disk" / "downloads"
    folder.mkdir(parents=True)
    (folder / "shakespeare.txt").write_text("another text")
    rewrite(data=downloaded(folder=str(folder)))

    assert_refused(resume("trainer.max_steps=9"), f"{folder}/shakespeare.txt must be the published")
    assert asked == []
