"""What schemathesis does before each request to the server that fuzz_api.py started; loaded as SCHEMATHESIS_HOOKS.

Texts made up at random name no job and describe none, so all that would be tried is the refusals. Some requests
therefore get the name of a job that is there, and some new jobs a command. Which ones follows from what was generated,
so the same seed sends the same requests.
"""

import zlib

import schemathesis

# Those fuzz_api.py keeps on the server: over in each way, and running.
JOBS = ("done", "failed", "stopped", "running", "last")
COMMANDS = (["true"], ["no-such-program"], "exit 3", ["sleep", "0.1"])


def pick(value, options):
    """One of the options, the same one for the same value; None for a share of the values."""
    number = zlib.crc32(repr(value).encode("utf-8", "surrogatepass"))
    return [*options, None][number % (len(options) + 1)]


@schemathesis.hook
def before_call(_context, case, _kwargs):
    parameters = case.path_parameters
    if isinstance(parameters, dict) and "job" in parameters:
        parameters["job"] = pick(parameters["job"], JOBS) or parameters["job"]
    if isinstance(parameters, dict) and "node" in parameters:
        parameters["node"] = pick(parameters["node"], ("node_local",)) or parameters["node"]
    # Only what is over can be removed; the jobs that other requests need are not.
    if case.method == "DELETE" and isinstance(parameters, dict) and parameters.get("job") in JOBS[:3]:
        parameters["job"] = "running"
    # Whoever follows all jobs is sent events for as long as there is a server.
    if case.operation.label == "GET /api/v1/events" and isinstance(case.query, dict) and case.query.get("follow"):
        case.query["follow"] = "false" if case.query["follow"] in (True, "true") else case.query["follow"]
    body = case.body
    is_new_job = case.operation.label == "POST /api/v1/jobs" and isinstance(body, dict)
    if is_new_job and isinstance(body.get("spec"), dict) and (command := pick(body, COMMANDS)):
        body["spec"] = {**body["spec"], "command": command} if len(body["spec"]) % 2 else {"command": command}
