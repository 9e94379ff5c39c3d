"""Who writes next: one leader works for everybody, the others park until their order is reached.

    enter(order) -> None     you lead: do the work, then leave(reached)
                 -> ticket   somebody else does: acquire it; it is released when your order is
                             reached, when it is your turn to lead, or for no reason: look again

    thread A   enter ====== write, sync ====== leave
    thread B      enter, park ................. wakes: done            (its entry was in A's group)
    thread C             enter, park .......... wakes: leads ====== write, sync ====== leave
    thread D                    append, enter, park ................................. wakes: done

While a leader is in its system call others append, and the next leader takes them all at once: a
sync carries as many commits as arrived during the one before it. A lone thread never parks.

Every parked thread has a lock of its own, so a leader wakes exactly the threads that are done, and
the next leader first of all, which can be back in its system call before the others have the
interpreter again. One lock for all would wake them one by one, each waking the next, and no sync
would run meanwhile.

Interrupts. An exception (Ctrl-C) can strike any thread between any two steps here. Whoever is
struck calls `resume`: it gives up leadership if this thread has it, and wakes everybody. That is
always right, because parked threads look at the world again when they wake, whatever woke them,
and enter again if need be. So the only invariant to keep is: a parked thread's ticket is in
`_waiting` until it has been released.
"""

from __future__ import annotations

from _thread import LockType, RLock, allocate_lock, get_ident


class Line:
    """Leadership of one log."""

    __slots__ = ("_leader", "_mutex", "_waiting")

    def __init__(self) -> None:
        self._mutex = RLock()
        self._leader = 0
        self._waiting: list[tuple[int, int, LockType]] = []

    def enter(self, order: int) -> LockType | None:
        """None: this thread leads until it leaves. Otherwise a ticket to park on."""
        thread = get_ident()
        with self._mutex:
            if self._leader == 0 or self._leader == thread:  # noqa: PLR1714 a set costs 60 ns
                self._leader = thread
                return None
            ticket = allocate_lock()
            ticket.acquire()
            self._waiting.append((order, thread, ticket))
            return ticket

    def is_ours(self) -> bool:
        """Does this thread lead? One that was woken to lead, and need not, has to leave, too."""
        return self._leader == get_ident()

    def leave(self, reached: int) -> None:
        """Hand over to the first thread that still waits, and wake all that need not."""
        with self._mutex:
            waiting = self._waiting
            if not waiting:
                self._leader = 0
                return
            rest = [one for one in waiting if one[0] > reached]
            if rest:
                self._leader = rest[0][1]
                wake(rest.pop(0)[2])
            else:
                self._leader = 0
            for order, _, ticket in waiting:
                if order <= reached:
                    wake(ticket)
            self._waiting = rest

    def resume(self) -> None:
        """After an interrupt or a failure: nobody parks, and this thread does not lead."""
        let_go(self._mutex)
        with self._mutex:
            if self._leader == get_ident():
                self._leader = 0
            for _, _, ticket in self._waiting:
                wake(ticket)
            self._waiting = []


def let_go(lock: RLock) -> None:
    """Release a lock that this thread may still hold.

    An exception can strike between the last step inside a `with` block and its exit, and then the
    lock stays held. Locks that know their owner can be let go of all the same.
    """
    # The question that threading.Condition asks of its lock. Asking is better than trying: this
    # runs inside exception handlers, and must not raise anything of its own.
    while lock._is_owned():  # type: ignore[attr-defined]
        lock.release()


def wake(ticket: LockType) -> None:
    """Release a ticket; twice is harmless."""
    try:
        ticket.release()
    except RuntimeError:
        # Not locked: somebody else has already released it.
        pass
