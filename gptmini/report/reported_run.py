"""A run folder as a report reads it: its curves, texts and images from the event files, and its configuration."""

from pathlib import Path

from gptmini.report.reading import read_events, tags_of
from gptmini.report.tables import leaves
from gptmini.runs import read_config
from gptmini.user_error import UserError

MOST_TEXTS = 20  # under one heading of a report


class ReportedRun:
    """A run folder, read whole.

    Attributes:
        folder: of the run.
        name: which the report calls the run; give_names sets it.
        config: every value of the configuration, by its dotted key.
        events: TensorBoard's EventAccumulator over all event files of the run.
        tags: the tags that the event files hold, by TensorBoard's kinds: scalars, tensors, images and others.
    """

    def __init__(self, folder: Path) -> None:
        """Read a run folder, as find_run returns it.

        Raises UserError: the run has nothing to show or no readable configuration.
        """
        self.name = ""
        self.folder = folder
        config, _ = read_config(folder)
        self.config = dict(leaves(config))
        loggers = config.get("logger")
        if loggers is not None and "tensorboard" not in loggers:
            raise UserError(
                f"{self.folder} keeps no curves for a report; train with logger=tensorboard for one"
            )

        self.events = read_events(self.folder)
        self.tags = tags_of(self.events)
        if not any(self.tags[kind] for kind in ("scalars", "tensors", "images")):
            raise UserError(f"{self.folder} has nothing to show yet: its event files hold nothing")

    def curve(self, tag: str) -> list[tuple[int, float]]:
        """Every (step, value) point of a scalar; an empty list where the run has no such tag."""
        if tag not in self.tags["scalars"]:
            return []
        return [(event.step, event.value) for event in self.events.Scalars(tag)]

    def texts(self, tag: str, most: int = MOST_TEXTS) -> list[tuple[int, str]]:
        """The newest texts under a tag, oldest first, as (step, HTML).

        TensorBoard's own converter makes the HTML from the text's Markdown and removes what a browser would run.
        """
        from tensorboard.plugin_util import markdown_to_safe_html

        name = f"{tag}/text_summary"
        if name not in self.tags["tensors"]:
            return []

        texts = []
        for event in self.events.Tensors(name)[-most:]:
            for text in event.tensor_proto.string_val[:1]:  # none in a damaged event
                markdown = text.decode("utf-8", errors="replace")
                texts.append((event.step, markdown_to_safe_html(markdown)))
        return texts


def give_names(runs: list[ReportedRun]) -> None:
    """Name each run by the shortest text that tells it from the others: runs/NAME/TIME is NAME, NAME/TIME or the path.

    Raises UserError: a run is given twice.
    """
    folders = [run.folder.resolve() for run in runs]
    if len(set(folders)) < len(folders):
        raise UserError(f"runs to compare must differ, got {', '.join(map(str, folders))}")

    short = [folder.parent.name for folder in folders]
    with_time = [f"{folder.parent.name}/{folder.name}" for folder in folders]  # TensorBoard's names
    paths = [str(folder) for folder in folders]
    choices = [short, with_time, paths]
    if len(runs) == 1:
        choices = [with_time]  # a page on one run says which of its name's runs it shows

    names = next(names for names in choices if len(set(names)) == len(runs))
    for run, name in zip(runs, names, strict=True):
        run.name = name
