"""Export: a trained function with its weights, for other programs to load."""

from trainband.export.artifact import Artifact as Artifact
from trainband.export.artifact import load as load
from trainband.export.exporting import ExportReport as ExportReport
from trainband.export.exporting import export_program as export_program
from trainband.export.source import program_of as program_of
from trainband.export.targets import TARGETS as TARGETS
from trainband.export.targets.base import Options as Options
