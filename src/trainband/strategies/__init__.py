"""The strategies: how replicas of one model cooperate. One a file, any of them replaceable by another."""

from trainband.strategies.base import Replica as Replica
from trainband.strategies.base import StepReport as StepReport
from trainband.strategies.base import Strategy as Strategy
from trainband.strategies.model import Model as Model
from trainband.strategies.one_device import OneDevice as OneDevice
from trainband.strategies.parameter_server import ParameterServer as ParameterServer
