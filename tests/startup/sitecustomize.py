"""What each Python does first that the fixture `programs` starts: it looks for garbage less often.

Of a process that lives for seconds, most of which it imports and traces, that is a seventh of the time. What only the
garbage collector closes stays open for longer, so that a leak is seen rather than hidden.
"""

import gc

gc.set_threshold(50_000, 20, 20)
