"""Tables and what happens to their rows: optimizers, initializers, admission and eviction, all as descriptions."""

from trainband.rows.admission import Admission as Admission
from trainband.rows.admission import AfterCount as AfterCount
from trainband.rows.admission import WithProbability as WithProbability
from trainband.rows.combiners import combined as combined
from trainband.rows.combiners import combined_ragged as combined_ragged
from trainband.rows.eviction import Eviction as Eviction
from trainband.rows.eviction import FewerThan as FewerThan
from trainband.rows.eviction import LowScore as LowScore
from trainband.rows.eviction import UnusedFor as UnusedFor
from trainband.rows.initializers import Constant as Constant
from trainband.rows.initializers import Normal as Normal
from trainband.rows.initializers import RowInitializer as RowInitializer
from trainband.rows.initializers import TruncatedNormal as TruncatedNormal
from trainband.rows.initializers import Uniform as Uniform
from trainband.rows.optimizers import Adagrad as Adagrad
from trainband.rows.optimizers import Ftrl as Ftrl
from trainband.rows.optimizers import LazyAdam as LazyAdam
from trainband.rows.optimizers import RowOptimizer as RowOptimizer
from trainband.rows.optimizers import RowwiseAdagrad as RowwiseAdagrad
from trainband.rows.optimizers import Sgd as Sgd
from trainband.rows.table import Table as Table
