"""What goes wrong: one root, one table from the server's codes and statuses to classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._printable import block

if TYPE_CHECKING:
    from ._job import Job


class Error(RuntimeError):
    """Something failed. `code` is stable, for programs; the text is for people; `hint` says what would help."""

    def __init__(self, message: str, *, code: str = "unknown", hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint

    def named(self, name: str) -> Error:
        """The same, with the name of who it happened to."""
        if not self.message.startswith(f"{name}: "):
            self.message = f"{name}: {self.message}"
            self.args = (self.message,)
        return self

    def __str__(self) -> str:
        text = f"{self.message} [{self.code}]"
        # It holds names and reasons of other people, and whoever catches it prints it.
        return block(f"{text}\nhint: {self.hint}" if self.hint else text)


class Unreachable(Error):
    """No server answers."""


class Problem(Error):
    """The server refused, and said why."""

    status: int
    #: Finds the request in the server's log.
    request_id: str | None
    #: Every field that is wrong: `field`, `code`, `message`.
    fields: list[dict[str, Any]]

    @classmethod
    def of(cls, status: int, body: dict[str, Any]) -> Problem:
        """The exception for a problem document."""
        code = str(body.get("code", "unknown"))
        kind = BY_CODE.get(code) or BY_STATUS.get(status, Problem)
        fields: list[dict[str, Any]] = body.get("errors") or []
        message = str(body.get("detail") or body.get("title") or f"HTTP status {status}")
        if len(fields) > 1:
            message += ": " + "; ".join(f"{one.get('field')}: {one.get('message')}" for one in fields)
        problem = kind(message, code=code, hint=body.get("hint"))
        problem.status, problem.fields, problem.request_id = status, fields, body.get("request_id")
        return problem


class Invalid(Problem):
    """What was asked for is wrong; nothing was done."""


class NotFound(Problem):
    """There is no such job, file or session."""


class Conflict(Problem):
    """The state of things forbids it."""


class SessionOver(Conflict):
    """The session's shell has ended: it takes no more commands."""


class Unauthorized(Problem):
    """The token is missing or wrong."""


class Unavailable(Problem):
    """Not now; the same request may work later."""


class ServerFailed(Problem):
    """Something failed in the server that should not."""


BY_CODE: dict[str, type[Problem]] = {"session_over": SessionOver}
BY_STATUS: dict[int, type[Problem]] = {
    400: Invalid,
    401: Unauthorized,
    404: NotFound,
    405: Invalid,
    409: Conflict,
    413: Invalid,
    422: Invalid,
    500: ServerFailed,
    503: Unavailable,
    507: Unavailable,
}


class Failed(Error):
    """A program of ours that was called on failed: `muster cp`, `muster submit`."""


class JobFailed(Error):
    """A job that was waited for did not succeed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        message = f"{job.id} {job.state}"
        if job.message:
            message += f": {job.message}"
        super().__init__(message, code=job.reason or job.state, hint=f"`muster why {job.id}` says what would help")


class JobLost(Error):
    """The job ended, or lost a node, under somebody who was working in it."""


class CommandFailed(Error):
    """A command ended with another status than 0."""

    def __init__(self, command: str, exit_status: int, output: str = "") -> None:
        self.command, self.exit_status, self.output = command, exit_status, output
        message = f"`{command}` ended with status {exit_status}"
        last = "\n".join(output.splitlines()[-10:])
        super().__init__(f"{message}; its last lines:\n{last}\n" if last else message, code="exit_code")


class CommandLost(Error):
    """The session's shell ended before the command did, so nobody knows how it would have ended."""

    def __init__(self, command: str, reason: str) -> None:
        self.command, self.reason = command, reason
        hint = "open the session anew; `exit` and `exec` end its shell"
        super().__init__(f"`{command}` is lost: {reason}", code="command_lost", hint=hint)


class Timeout(Error, TimeoutError):
    """It was not over in time. What was waited for goes on."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} is not over after {seconds:g} s; it goes on", code="wait_timeout")
