"""The driver's end of every socket: accepts peers that know the secret and hands out what they said."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refimpl.ranks import wire


@dataclass(eq=False)
class Peer:
    sock: socket.socket
    receiver: wire.Receiver
    hello: dict[str, Any] = field(default_factory=dict)
    open: bool = True

    def send(self, head: dict[str, Any], arrays: list[np.ndarray] | None = None) -> bool:
        """False when the peer has hung up."""
        if self.open:
            try:
                wire.send(self.sock, head, arrays)
            except OSError:
                self.open = False
        return self.open


@dataclass
class Event:
    """A frame from a peer, or, with head ``{"event": "hung up"}``, its end."""

    peer: Peer
    head: dict[str, Any]
    arrays: list[np.ndarray]


class Hub:
    def __init__(self, address: str, secret: str) -> None:
        self._secret = secret
        self._listener = socket.create_server((address, 0), backlog=128)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]

    def poll(self, timeout: float) -> list[Event]:
        """Events that arrive within ``timeout`` seconds; returns with the first ones, or empty."""
        events: list[Event] = []
        for key, _ in self._selector.select(max(0.0, timeout)):
            if key.data is None:
                self._accept()
                continue
            peer: Peer = key.data
            try:
                for head, arrays in peer.receiver.available():
                    greeting = not peer.hello
                    if greeting:
                        peer.hello = head
                    events.append(Event(peer, {**head, "event": "hello"} if greeting else head, arrays))
            except (wire.WireError, ValueError):
                self.drop(peer)
                events.append(Event(peer, {"event": "hung up"}, []))
        return events

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        try:
            wire.greet_as_hub(sock, self._secret)
        except (wire.WireError, OSError):
            sock.close()  # a port scan, or another run's peer
            return
        self._selector.register(sock, selectors.EVENT_READ, Peer(sock, wire.Receiver(sock)))

    def drop(self, peer: Peer) -> None:
        peer.open = False
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.sock)
        peer.sock.close()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self.drop(key.data)
        self._selector.close()
        self._listener.close()


def wait_for(hub: Hub, seconds: float, done: Any, take: Any) -> bool:
    """Feed events to ``take`` until ``done()``; False when the time ran out first."""
    end = time.monotonic() + seconds
    while not done():
        left = end - time.monotonic()
        if left <= 0:
            return False
        for event in hub.poll(min(left, 1.0)):
            take(event)
    return True
