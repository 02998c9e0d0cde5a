"""Training with Lightning. This package contains the module, the data module, callbacks, loggers and checkpoints.

No other package imports Lightning. Configurations and users name a class without its file, as gptmini.training.Scalars.
Such a name is imported at its first use, so gptmini can check settings without importing torch and Lightning.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names
from gptmini.training.lazy_torchmetrics import defer_torchmetrics

defer_torchmetrics()  # before any file of this package imports Lightning

if TYPE_CHECKING:
    from gptmini.training.assembling import assemble as assemble
    from gptmini.training.assembling import hardware_of as hardware_of
    from gptmini.training.assembling import restore_callbacks as restore_callbacks
    from gptmini.training.budget.ladder import Rung as Rung
    from gptmini.training.budget.ladder import best_rung as best_rung
    from gptmini.training.budget.ladder import climb_ladder as climb_ladder
    from gptmini.training.budget.ladder import most_useful_steps as most_useful_steps
    from gptmini.training.budget.law import TextSize as TextSize
    from gptmini.training.budget.law import n_block_weights as n_block_weights
    from gptmini.training.budget.law import predicted_loss as predicted_loss
    from gptmini.training.budget.timing import SECONDS_AROUND as SECONDS_AROUND
    from gptmini.training.budget.timing import measure_module as measure_module
    from gptmini.training.budget.timing import seconds_of_validation as seconds_of_validation
    from gptmini.training.budget.timing import steps_that_fit as steps_that_fit
    from gptmini.training.callbacks.bad_steps import BadSteps as BadSteps
    from gptmini.training.callbacks.checkpoints import Best as Best
    from gptmini.training.callbacks.checkpoints import RunCheckpoints as RunCheckpoints
    from gptmini.training.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from gptmini.training.callbacks.pictures import Pictures as Pictures
    from gptmini.training.callbacks.pruning import Pruning as Pruning
    from gptmini.training.callbacks.samples import Samples as Samples
    from gptmini.training.callbacks.scalars import Scalars as Scalars
    from gptmini.training.datamodule import TokenDataModule as TokenDataModule
    from gptmini.training.devices.ranks import Ranks as Ranks
    from gptmini.training.devices.requeueing import requeue as requeue
    from gptmini.training.loggers.console import ConsoleLogger as ConsoleLogger
    from gptmini.training.loggers.logger import MetricsLogger as MetricsLogger
    from gptmini.training.loggers.logger import RunLogger as RunLogger
    from gptmini.training.loggers.tensorboard import EventLogger as EventLogger
    from gptmini.training.module import GPTModule as GPTModule
    from gptmini.training.quiet import quieten_lightning as quieten_lightning
    from gptmini.training.quiet import restore_logging as restore_logging
    from gptmini.training.recipe import ENOUGH_PASSES as ENOUGH_PASSES
    from gptmini.training.recipe import MOST_TOKENS as MOST_TOKENS
    from gptmini.training.recipe import one_pass_values as one_pass_values
    from gptmini.training.recipe import recipe_for as recipe_for
    from gptmini.training.recipe import steps_for as steps_for
    from gptmini.training.recipe import suitable_vocabulary as suitable_vocabulary
    from gptmini.training.settings import Component as Component
    from gptmini.training.settings import PrepareSettings as PrepareSettings
    from gptmini.training.settings import RootSettings as RootSettings
    from gptmini.training.settings import Settings as Settings
    from gptmini.training.settings import TextSettings as TextSettings
    from gptmini.training.stopping import Stopping as Stopping
    from gptmini.training.stopping import StopReason as StopReason
    from gptmini.training.trainer import Callback as Callback
    from gptmini.training.trainer import Logger as Logger
    from gptmini.training.trainer import Trainer as Trainer
    from gptmini.training.trainer import build_trainer as build_trainer
    from gptmini.training.trainer import check_callback as check_callback
    from gptmini.training.trainer_settings import TrainerSettings as TrainerSettings
    from gptmini.training.trainer_settings import divisors as divisors
    from gptmini.training.trainer_settings import sequences_per_rank as sequences_per_rank
else:
    __getattr__ = lazy_names(__name__)
