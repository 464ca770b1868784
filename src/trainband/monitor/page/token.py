"""The token of a job's page."""

from __future__ import annotations

import hashlib
import hmac

from trainband.cluster.credentials import Credentials
from trainband.runtime.http.access import new_token


def token_for(credentials: Credentials) -> str:
    """Returns the token of a job's page: the same after a restart of its server, and useless for anything else.

    Returns:
      a text that only holders of the job's secret can make; a random one for a job that has certificates only; an
      empty one for a job that anyone may ask.
    """
    if credentials.secret:
        digest = hmac.new(credentials.secret, b"trainband dashboard", hashlib.sha256).hexdigest()
        return digest[:32]
    return new_token() if credentials.protect else ""
