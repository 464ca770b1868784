"""Who may look at the page."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from trainband.cluster.credentials import Credentials


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Who may look.

    Attributes:
      token: what a viewer must know; empty where anybody may look who reaches the page.
      loopback: whether the page is on the loopback interface: requests that name another host are refused then, so
        that no site can have its name lead here and read the page with a visitor's browser.
    """

    token: str = ""
    loopback: bool = True

    def knows_token(self, given: str) -> bool:
        """Whether a text is the token, found out in a time that does not depend on it."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def allows(self, cookies: str, authorization: str, cookie_name: str) -> bool:
        """Whether the headers `Cookie` or `Authorization` of a request bring the token."""
        if not self.token:
            return True
        scheme, _, bearer = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.knows_token(bearer.strip()):
            return True
        try:
            found = SimpleCookie(cookies).get(cookie_name)
        except CookieError:
            return False
        return found is not None and self.knows_token(found.value)

    def allows_host(self, host: str) -> bool:
        """Whether a request for this `Host` is meant for the page."""
        return not self.loopback or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine's own interface."""
    name, _, port = host.rpartition(":")
    for candidate in (host, name if port.isdigit() else host):
        candidate = candidate.strip("[]").lower()
        if candidate == "localhost":
            return True
        try:
            return ipaddress.ip_address(candidate).is_loopback
        except ValueError:
            continue
    return False


def token_for(credentials: Credentials) -> str:
    """The token of a job's page: the same whenever its server is started again, and no use for anything else.

    Returns:
      a text that only who knows the job's secret can make; a random one for a job that has certificates alone; an
      empty one for a job that anybody may ask.
    """
    if credentials.secret:
        digest = hmac.new(credentials.secret, b"trainband dashboard", hashlib.sha256).hexdigest()
        return digest[:32]
    return new_token() if credentials.protect else ""


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_hex(16)
