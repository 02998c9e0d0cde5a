"""Reports on runs as text, tables, charts, an HTML page or CSV. The values come from metrics.jsonl and config.yaml.

Each name is imported at its first use, because matplotlib takes half a second.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.report.drawing import attention_maps as attention_maps
    from gptmini.report.drawing import png as png
    from gptmini.report.drawing import visible as visible
    from gptmini.report.overview import Overview as Overview
    from gptmini.report.overview import overview_of as overview_of
    from gptmini.report.page import page_of as page_of
    from gptmini.report.reported_run import ReportedRun as ReportedRun
    from gptmini.report.reported_run import give_names as give_names
    from gptmini.report.tables import comparison as comparison
    from gptmini.report.tables import config_table as config_table
    from gptmini.report.tables import csv_of as csv_of
    from gptmini.report.tables import data_card as data_card
    from gptmini.report.tables import model_table as model_table
    from gptmini.report.tags import COMPARED as COMPARED
    from gptmini.report.tags import LAYOUT as LAYOUT
else:
    __getattr__ = lazy_names(__name__)
