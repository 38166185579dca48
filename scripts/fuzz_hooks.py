"""What schemathesis does before each request to the server that fuzz_api.py started; loaded as SCHEMATHESIS_HOOKS.

Texts made up at random name no job and describe none, so all that would be tried is the refusals. Some requests
therefore get the name of a job that is there, and some new jobs a command. Which ones follows from what was generated,
so the same seed sends the same requests.
"""

import zlib

import schemathesis

# Those fuzz_api.py keeps on the server: over in each way, and running.
JOBS = ("done", "failed", "stopped", "running", "last")
POOLS = ("gpu", "spare")
USERS = ("the-viewer", "the-member", "the-lead", "somebody")
WORKSPACES = ("default", "other")
DESTINATIONS = tuple(f"nobody@127.0.0.{last}" for last in range(1, 9))
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
    if isinstance(parameters, dict) and "pool" in parameters:
        parameters["pool"] = pick(parameters["pool"], POOLS) or parameters["pool"]
    for name, known in (("user", USERS), ("workspace", WORKSPACES)):
        if isinstance(parameters, dict) and name in parameters:
            parameters[name] = pick(parameters[name], known) or parameters[name]
    # Hosts would be reached for: none leads away from this machine, nor to an sshd on it.
    if "/pools/" in case.operation.path and isinstance(case.body, dict) and isinstance(case.body.get("hosts"), list):
        # Each is two processes for as long as it is tried.
        del case.body["hosts"][2:]
        for host in case.body["hosts"]:
            if isinstance(host, dict) and isinstance(host.get("destination"), str):
                host["destination"] = pick(host["destination"], DESTINATIONS) or "-" + host["destination"]
                host["port"] = 1
    if isinstance(case.query, dict) and str(case.query.get("wait_ms", "")).isdigit():
        case.query["wait_ms"] = int(case.query["wait_ms"]) % 100 if int(case.query["wait_ms"]) <= 30000 else 30001
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
