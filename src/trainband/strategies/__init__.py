"""The strategies: how replicas of one model cooperate. One a file, any of them replaceable by another."""

from trainband.job.engine import Engine as Engine
from trainband.model.model import Model as Model
from trainband.spmd.sharding import auto_fsdp as auto_fsdp
from trainband.strategies.base import StepReport as StepReport
from trainband.strategies.base import Strategy as Strategy
from trainband.strategies.mirrored import Mirrored as Mirrored
from trainband.strategies.model_parallel import ModelParallel as ModelParallel
from trainband.strategies.multi_worker import MultiWorkerMirrored as MultiWorkerMirrored
from trainband.strategies.one_device import OneDevice as OneDevice
from trainband.strategies.parameter_server import ParameterServer as ParameterServer
from trainband.strategies.wire_dtype import WireDtype as WireDtype
