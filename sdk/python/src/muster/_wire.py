"""What the API says, as types. Made from openapi.json, and as long, by scripts/sdk_types.py: not edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

if TYPE_CHECKING:
    # Python 3.11 has it; nothing evaluates these annotations, so older ones need no package for it.
    from typing_extensions import NotRequired


BundleId = str
Bytes = str
ChunkId = str
Code = Literal[
    "ambiguous",
    "bundle_incomplete",
    "chunk_mismatch",
    "configured",
    "forbidden",
    "idempotency_conflict",
    "in_use",
    "internal",
    "invalid_fields",
    "invalid_request",
    "invalid_state",
    "job_not_found",
    "method_not_allowed",
    "name_taken",
    "no_accounts",
    "no_room",
    "node_not_found",
    "not_found",
    "pool_not_found",
    "server_config_invalid",
    "server_disk_full",
    "session_over",
    "storage_limit",
    "too_large",
    "too_many_requests",
    "unauthorized",
    "unavailable",
    "unknown",
]
Command = Union[list[str], str]
CommandOn = Literal["all", "first", "processes"]
CommandState = Literal["queued", "running", "done", "lost"]
ElementState = Literal["waiting", "running", "succeeded", "failed"]
Face = Literal["dlws", "dlc", "modelarts", "slurm"]
FieldCode = Literal[
    "name_in_use",
    "not_enough_resources",
    "not_supported",
    "not_utf8",
    "out_of_range",
    "required",
    "several_found",
    "unknown_field",
    "variable_not_set",
    "workdir_missing",
    "workdir_unusable",
    "wrong_type",
    "invalid_value",
]
FileKind = Literal["directory", "file", "link", "other"]
Framework = Literal["plain", "pytorch", "deepspeed", "horovod", "mpi", "jax", "tensorflow", "paddle", "mindspore"]
Health = Literal["ok", "warning", "broken"]
JobId = str
Kind = Literal["training", "machine"]
LogStream = Literal["stdout", "stderr"]
NodeId = str
On = Literal["ok", "any", "failed"]
OnFailure = Literal["stop", "continue"]
Parting = Literal["suspend", "stop"]
Role = Literal["viewer", "member", "lead"]
Scope = Literal["read", "write", "admin"]
State = Literal["queued", "starting", "running", "stopping", "succeeded", "failed", "stopped", "suspended"]
TaskPhase = Literal["assigned", "ready", "running", "ended"]
Terminal = Literal["tmux", "pty"]
TimeLimitSource = Literal["job", "partition_default", "partition_limit", "cluster"]
UserState = Literal["pending", "active", "disabled"]
Vendor = Literal["ascend", "nvidia"]


class Account(TypedDict):
    """An account of a machine, which tasks run under."""

    gid: int
    home: str
    name: str
    uid: int


class AddHosts(TypedDict):
    """`POST /pools/{pool}/hosts`: more hosts. A pool that is not there is made; a host that is there already is reached as it is said here from now on, and tried at once if it is away."""

    hosts: list[HostSpec]
    shared: NotRequired[str | None]


class Address(TypedDict):
    """Where a task's peers reach it."""

    account: NotRequired[Account | None]
    infiniband: NotRequired[str | None]
    interface: NotRequired[str | None]
    ip: str
    ports: list[int]
    shared_port: NotRequired[int | None]


class After(TypedDict):
    """Another job that must end first."""

    job: str
    on: NotRequired[On]


class AllocationView(TypedDict):
    """What another scheduler keeps for an attempt."""

    hosts: list[str]
    id: NotRequired[str | None]


class Asks(TypedDict):
    """What a job asks for beside nodes and devices."""

    cpu_millis: NotRequired[int]
    exclusive: NotRequired[bool]
    memory_bytes: NotRequired[int]
    preemptible: NotRequired[bool]
    priority: NotRequired[int]
    timeout_ms: NotRequired[int | None]
    workspace: NotRequired[str]


class AttemptView(TypedDict):
    """One try."""

    ended_at: NotRequired[str | None]
    number: int
    reason: NotRequired[Reason | None]
    started_at: str
    tasks: list[TaskView]


class AuditEntry(TypedDict):
    """An entry of the audit log."""

    address: NotRequired[str | None]
    at: str
    count: NotRequired[int]
    detail: NotRequired[dict[str, Any] | None]
    job: NotRequired[str | None]
    operation: str
    outcome: str
    request: NotRequired[str | None]
    seq: int
    status: NotRequired[int | None]
    target: str
    token: NotRequired[str | None]
    user: NotRequired[str | None]


class AuditPage(TypedDict):
    """`GET /audit`: newest first."""

    items: list[AuditEntry]
    next_cursor: NotRequired[str | None]


class AvailableView(TypedDict):
    """What somebody can get of one model now."""

    all: int
    free: int
    largest: NotRequired[LargestView | None]
    model: str
    on: str
    quota_left: NotRequired[int | None]


class Batch(TypedDict):
    """A batch script as Slurm runs it: once, on the first node; what it starts with `srun` runs on all of them."""

    account: NotRequired[str | None]
    append: NotRequired[bool]
    cpus_per_task: NotRequired[int | None]
    error: NotRequired[str | None]
    gpus_per_task: NotRequired[int | None]
    job_name: NotRequired[str | None]
    ntasks: NotRequired[int | None]
    ntasks_per_node: NotRequired[int | None]
    options: NotRequired[list[str]]
    output: NotRequired[str | None]
    partition: NotRequired[str | None]
    script: NotRequired[str]
    signal: NotRequired[str | None]
    submit_host: NotRequired[str | None]


class BundleStatus(TypedDict):
    """The answer: the bundle's name, and what must still be sent with `POST /chunks` before asking again."""

    id: BundleId
    missing: list[ChunkId]


class ChangeJob(TypedDict):
    """`PATCH /jobs/{job}`: what is absent stays."""

    priority: NotRequired[int | None]


class ChangeQuota(TypedDict):
    """`PATCH /quota/workspaces/{workspace}`: what is absent stays."""

    cpu_millis: NotRequired[Quota | None]
    gpus: NotRequired[Quota | None]
    memory_bytes: NotRequired[Quota | None]
    models: NotRequired[dict[str, Quota]]
    unlimited: NotRequired[list[str]]
    weight: NotRequired[float | None]


class ChangeUser(TypedDict):
    """`PATCH /users/{user}`: what is absent stays."""

    account: NotRequired[str | None]
    admin: NotRequired[bool | None]
    disabled: NotRequired[bool | None]


class ChangeUserQuota(TypedDict):
    """`PATCH /quota/users/{user}`: what is absent stays."""

    max_running: NotRequired[int | None]
    weight: NotRequired[float | None]


class Check(TypedDict):
    """One thing that was looked at."""

    detail: str
    name: str
    remedy: NotRequired[str | None]
    status: Health


class Chunk(TypedDict):
    """A piece of a bundle."""

    bytes: int
    id: ChunkId


class ChunkList(TypedDict):
    """`POST /chunks/missing`, request and reply: of these chunks, those that the server lacks, or has from other users alone."""

    chunks: list[ChunkId]


class ClusterList(TypedDict):
    """All clusters."""

    items: list[ClusterView]


class ClusterNode(TypedDict):
    """A machine of a cluster."""

    cpu_millis: int
    cpu_millis_free: int
    devices: dict[str, DeviceCount]
    memory_bytes: int
    memory_bytes_free: int
    name: str
    note: NotRequired[str | None]
    on: list[str]
    state: str


class ClusterView(TypedDict):
    """A cluster with a scheduler of its own."""

    engine: str
    error: NotRequired[str | None]
    hidden: NotRequired[list[HiddenPlace]]
    limits: NotRequired[list[PlaceLimitsView]]
    limits_error: NotRequired[str | None]
    nodes: list[ClusterNode]


class CommandList(TypedDict):
    """The last commands of a session."""

    items: list[SessionCommand]


class CreateJob(TypedDict):
    """`POST /jobs`."""

    bundle: NotRequired[BundleId | None]
    environment: NotRequired[dict[str, str] | None]
    source: NotRequired[Source | None]
    spec: dict[str, Any]


class CreateToken(TypedDict):
    """`POST /users/{user}/tokens`."""

    expires_in_s: NotRequired[int | None]
    name: str
    scope: Scope
    workspace: NotRequired[str | None]


class CreateUser(TypedDict):
    """`POST /users`."""

    account: NotRequired[str | None]
    admin: NotRequired[bool]
    display_name: NotRequired[str | None]
    name: str
    password: NotRequired[str | None]


class DamagedLog(TypedDict):
    """A part of a task's log that is damaged on the server's disk."""

    attempt: int
    bytes: int
    offset: int
    rank: int


class Device(TypedDict):
    """An accelerator of a node."""

    index: int
    ip: NotRequired[str | None]
    memory_bytes: int
    model: str
    simulated: bool
    uuid: str
    vendor: Vendor


class DeviceCount(TypedDict):
    """How many accelerators of a kind there are."""

    free: int
    total: int


class DeviceUsage(TypedDict):
    """How a device was used while a task had it."""

    index: int
    mean_memory_bytes: NotRequired[int | None]
    mean_power_watts: NotRequired[int | None]
    mean_utilisation_percent: NotRequired[int | None]
    peak_memory_bytes: NotRequired[int | None]
    peak_power_watts: NotRequired[int | None]
    peak_temperature_celsius: NotRequired[int | None]
    peak_utilisation_percent: NotRequired[int | None]


class DeviceUse(TypedDict):
    """How a device is used and how it is."""

    ecc_corrected: NotRequired[int | None]
    ecc_uncorrected: NotRequired[int | None]
    index: int
    memory_bytes: NotRequired[int | None]
    memory_total_bytes: NotRequired[int | None]
    power_watts: NotRequired[int | None]
    temperature_celsius: NotRequired[int | None]
    utilisation_percent: NotRequired[int | None]


class DeviceView(Device):
    """An accelerator and who has it."""

    in_use: NotRequired[bool]
    job: NotRequired[JobId | None]
    now: NotRequired[DeviceUse | None]


class Doctor(TypedDict):
    """`GET /doctor`: how the server is."""

    at: str
    checks: list[Check]


class DrainNode(TypedDict):
    """`POST /nodes/{node}/drain`."""

    evict: NotRequired[bool]


class ElementCounts(TypedDict):
    """How many elements are how."""

    failed: int
    running: int
    succeeded: int
    total: int
    waiting: int


class ElementPage(TypedDict):
    """A page of elements."""

    items: list[ElementView]
    next_after: NotRequired[int | None]


class ElementView(TypedDict):
    """An element of an array."""

    attempt: NotRequired[int | None]
    ended_at: NotRequired[str | None]
    failure: NotRequired[Reason | None]
    index: int
    message: NotRequired[str | None]
    rank: NotRequired[int | None]
    started_at: NotRequired[str | None]
    state: ElementState
    tries: int


class Endpoint(TypedDict):
    """A port of a task that people reach through muster."""

    name: str
    port: int


class EventView(TypedDict):
    """Something that happened to a job."""

    at: str
    attempt: NotRequired[int | None]
    body: dict[str, Any]
    job: NotRequired[JobId | None]
    kind: str
    seq: int


class FieldError(TypedDict):
    """One thing wrong with what a user gave, and where."""

    code: NotRequired[FieldCode]
    field: str
    message: str


class FileEntry(TypedDict):
    """Something in a task's directories."""

    bytes: int
    kind: FileKind
    mode: int
    modified_at: str
    path: str
    target: NotRequired[str | None]


class FileList(TypedDict):
    """A job's files."""

    items: list[FileEntry]
    on: str
    truncated: bool


class Gc(TypedDict):
    """`POST /gc`."""

    dry_run: NotRequired[bool]


class GcReport(TypedDict):
    """What was removed because it need not be kept, or would be."""

    bundles: int
    chunk_bytes: int
    chunks: int
    dry_run: bool
    logs_bytes: int
    nodes: list[NodeFreed]
    outputs_bytes: int
    owed: NotRequired[list[OwedRemovals]]


class HiddenPlace(TypedDict):
    """A place of which nothing can be shown, beside others of which something can."""

    on: str
    why: str


class HostSpec(TypedDict):
    """How a host is reached, as somebody says it."""

    address: NotRequired[str | None]
    destination: str
    key: NotRequired[str | None]
    port: NotRequired[int | None]


class HostView(TypedDict):
    """A host of a pool."""

    address: NotRequired[str | None]
    destination: str
    key: NotRequired[str | None]
    node: NodeView
    port: NotRequired[int | None]


class JobEvents(TypedDict):
    """A server-sent event: `event`s as they happen, then `end`."""

    data: str
    event: Literal["event", "end", "error"]
    id: NotRequired[str]


class JobMetrics(TypedDict):
    """`GET /jobs/{job}/metrics`."""

    attempt: int
    job: JobId
    tasks: list[TaskMetrics]


class JobPage(TypedDict):
    """A page of a list."""

    items: list[JobSummary]
    next_cursor: NotRequired[str | None]


class JobSpec(TypedDict):
    """What a user asked to run."""

    after: NotRequired[list[After]]
    array: NotRequired[str | None]
    batch: NotRequired[Batch | None]
    clean_env: NotRequired[bool]
    command: NotRequired[Command]
    command_on: NotRequired[CommandOn | None]
    display_name: NotRequired[str | None]
    endpoints: NotRequired[list[Endpoint]]
    env: NotRequired[dict[str, str]]
    exclude: NotRequired[list[str]]
    exclusive: NotRequired[bool]
    faces: NotRequired[list[Face] | None]
    framework: NotRequired[Framework | None]
    grace: str
    hold: NotRequired[bool]
    image: NotRequired[str | None]
    in_place: NotRequired[bool]
    k8s: NotRequired[Kubernetes | None]
    kind: NotRequired[Kind]
    labels: NotRequired[dict[str, str]]
    name: NotRequired[str | None]
    node_labels: NotRequired[dict[str, str]]
    nodes: int
    on: NotRequired[str]
    on_failure: NotRequired[OnFailure]
    outputs: NotRequired[list[str]]
    own_home: NotRequired[bool]
    peers: NotRequired[bool | None]
    preemptible: NotRequired[bool]
    priority: int
    processes: NotRequired[int | None]
    resources: NotRequired[Resources]
    retries: NotRequired[Retries]
    secrets: NotRequired[list[Secret]]
    setup: NotRequired[str | None]
    setup_once: NotRequired[str | None]
    stop_signal: NotRequired[str]
    timeout: NotRequired[str | None]
    volumes: NotRequired[list[Volume]]
    without_volumes: NotRequired[bool]
    workdir: NotRequired[str | None]
    workspace: NotRequired[str | None]


class JobSummary(TypedDict):
    """A job in a list."""

    asks: NotRequired[Asks]
    attempt: int
    command: str
    display_name: NotRequired[str | None]
    elements: NotRequired[ElementCounts | None]
    ended_at: NotRequired[str | None]
    exit_code: NotRequired[int | None]
    gpus: NotRequired[str | None]
    id: JobId
    kind: NotRequired[Kind]
    labels: NotRequired[dict[str, str]]
    message: NotRequired[str | None]
    name: str
    nodes: int
    on: str
    owner: str
    reason: NotRequired[Reason | None]
    started_at: NotRequired[str | None]
    state: State
    submitted_at: str


class Kubernetes(TypedDict):
    """The block `k8s` of a job, and what the configuration has for jobs that do not say."""

    group: NotRequired[int | None]
    image_pull_secrets: NotRequired[list[str]]
    node_selector: NotRequired[dict[str, str]]
    pod: NotRequired[dict[str, Any] | None]
    priority_class: NotRequired[str | None]
    queue: NotRequired[str | None]
    resources: NotRequired[dict[str, str]]
    secrets: NotRequired[dict[str, str]]
    service_account: NotRequired[str | None]
    tolerations: NotRequired[list[dict[str, Any]]]
    user: NotRequired[int | None]


class LabelNode(TypedDict):
    """What a node is to be labelled with."""

    labels: dict[str, str | None]


class LargestView(TypedDict):
    """A job that would start now."""

    gpus: int
    nodes: int


class LaunchView(TypedDict):
    """How the tasks of a job are started."""

    argv: list[str]
    command_on: CommandOn
    framework: Framework
    processes: int


class LogChunk(TypedDict):
    """An SSE event `log`: a piece of a task's output, as it was written."""

    at: str
    attempt: int
    base64: NotRequired[str | None]
    cut: NotRequired[bool]
    next: int
    process_rank: NotRequired[int | None]
    rank: int
    skip: NotRequired[list[int] | None]
    stream: LogStream
    text: NotRequired[str | None]


class LogEvents(TypedDict):
    """A server-sent event: pieces of output (`log`), then `end`."""

    data: str
    event: Literal["log", "end", "error"]
    id: NotRequired[str]


class Login(TypedDict):
    """`POST /login`."""

    password: str
    user: str


class MemberView(TypedDict):
    """Somebody of a workspace."""

    display_name: NotRequired[str | None]
    role: NotRequired[Role | None]
    since: str
    user: str


class MissingLog(TypedDict):
    """The end of a task's log that is on a node that is away."""

    attempt: int
    bytes: int
    node: NodeId
    rank: int


class NewToken(TypedDict):
    """A token as it is made: the only time that its secret is shown."""

    secret: str
    token: TokenView


class NodeError(TypedDict):
    """A try to start a node's agent that failed."""

    at: str
    may_pass: bool
    message: str


class NodeFreed(TypedDict):
    """What a node removed."""

    bytes: int
    node: NodeId


class NodeList(TypedDict):
    """All nodes."""

    items: list[NodeView]


class NodeMetrics(TypedDict):
    """`GET /nodes/{node}/metrics`."""

    history: list[NodePoint]
    node: NodeId
    now: NotRequired[NodePoint | None]


class NodeUse(TypedDict):
    """What is in use of a machine. Rates are means since the measurement before."""

    cpu_millis: int
    cpu_total_millis: int
    memory_bytes: int
    memory_total_bytes: int
    read_bytes_per_second: NotRequired[int | None]
    received_bytes_per_second: NotRequired[int | None]
    sent_bytes_per_second: NotRequired[int | None]
    written_bytes_per_second: NotRequired[int | None]


class NodeView(TypedDict):
    """A node."""

    agent_pid: NotRequired[int | None]
    agent_version: NotRequired[str | None]
    connected: bool
    cpu_millis: int
    cpu_millis_used: int
    devices: list[DeviceView]
    drained: NotRequired[bool]
    engine: str
    error: NotRequired[NodeError | None]
    host: str
    id: NodeId
    labels: NotRequired[dict[str, str]]
    memory_bytes: int
    memory_bytes_used: int
    now: NotRequired[NodeUse | None]
    pool: NotRequired[str | None]
    slots: int
    slots_used: int


class OpenSession(TypedDict):
    """`PUT /jobs/{job}/sessions/{name}`: how to open a session."""

    fresh: NotRequired[bool]


class Outputs(TypedDict):
    """What became of the files a task was to leave behind."""

    at: NotRequired[str]
    bundle: NotRequired[BundleId]
    bytes: NotRequired[int]
    files: NotRequired[int]
    message: NotRequired[str]
    state: Literal["collected", "failed", "removed"]


class OwedRemovals(TypedDict):
    """What a node has yet to remove: it was away when the jobs were removed, or could not do it."""

    jobs: int
    node: NodeId
    since: NotRequired[str | None]


class Place(TypedDict):
    """What somebody is in a workspace."""

    role: NotRequired[Role | None]
    workspace: str


class PlaceLimitsView(TypedDict):
    """The limits that a place has for each job."""

    default_time_ms: NotRequired[int | None]
    is_default: NotRequired[bool]
    max_nodes: NotRequired[int | None]
    max_time_ms: NotRequired[int | None]
    on: str


class PoolList(TypedDict):
    """All pools."""

    items: list[PoolView]


class PoolView(TypedDict):
    """A pool."""

    configured: bool
    hosts: list[HostView]
    name: str
    on: str
    shared: NotRequired[str | None]


class Preview(TypedDict):
    """What `dry_run` answers: the spec with every default filled in, and what would happen to it."""

    launch: NotRequired[LaunchView | None]
    name: str
    spec: JobSpec
    why: Why


class Problem(TypedDict):
    """An error reply: `application/problem+json`."""

    code: Code
    detail: str
    errors: NotRequired[list[FieldError]]
    hint: NotRequired[str | None]
    request_id: NotRequired[str | None]
    retry_after: NotRequired[int | None]
    status: int
    title: str
    type: str


class PutBundle(TypedDict):
    """`POST /bundles`: what a bundle is made of."""

    content: list[Chunk]
    listing: list[Chunk]


class PutMember(TypedDict):
    """`PUT /workspaces/{workspace}/members/{user}`."""

    role: Role


class PutPool(TypedDict):
    """`PUT /pools/{pool}`: all of a pool. Hosts that are not named go, if they have no tasks."""

    hosts: list[HostSpec]
    shared: NotRequired[str | None]


class QueueView(TypedDict):
    """`GET /queue`: who waits, those that are to start next first."""

    items: list[QueuedView]
    waiting: int


class QueuedView(TypedDict):
    """A job that waits."""

    code: str
    cpu_millis: NotRequired[int]
    display_name: NotRequired[str | None]
    elements: NotRequired[int | None]
    exclusive: NotRequired[bool]
    gpus: NotRequired[str | None]
    job: JobId
    memory_bytes: NotRequired[int]
    name: str
    nodes: int
    on: str
    position: NotRequired[int | None]
    priority: int
    starts_at: NotRequired[str | None]
    summary: str
    user: str
    waiting_since: str
    workspace: str


class Quota(TypedDict):
    """How much of one resource a workspace may have."""

    borrow: NotRequired[int | None]
    lend: NotRequired[int | None]
    nominal: int


class QuotaView(TypedDict):
    """`GET /quota`: who may have what, who has what, and what the caller can get now."""

    available: list[AvailableView]
    max_running: NotRequired[int | None]
    users: list[UserQuotaView]
    workspace: NotRequired[str | None]
    workspaces: list[WorkspaceQuotaView]


class Reason(TypedDict):
    """Why a task or a job ended, or went back to the queue. Serialised with its `code`."""

    by: NotRequired[str | None]
    code: Literal[
        "allocation_failed",
        "allocation_lapsed",
        "cancelled_outside",
        "prepare_failed",
        "code_damaged",
        "command_not_executable",
        "command_not_found",
        "dependency_failed",
        "displaced",
        "elements_failed",
        "exit_code",
        "evicted",
        "hung",
        "image_pull_failed",
        "node_lost",
        "out_of_memory",
        "owner_not_allowed",
        "preempted",
        "record_damaged",
        "refused",
        "setup_failed",
        "signal",
        "stopped_by_user",
        "supervisor_lost",
        "suspended",
        "timeout",
    ]
    command: NotRequired[str]
    error: NotRequired[str | None]
    exit_code: NotRequired[int]
    failed: NotRequired[int]
    limit_ms: NotRequired[int]
    message: NotRequired[str]
    node: NotRequired[str]
    set_by: NotRequired[TimeLimitSource]
    signal: NotRequired[int]
    total: NotRequired[int]


class RenameJob(TypedDict):
    """`POST /jobs/{job}/rename`, and of one machine of a group `POST /jobs/{job}/tasks/{rank}/rename`."""

    name: str


class ResourceView(TypedDict):
    """What a workspace may have, and has, of one resource."""

    borrow: NotRequired[int | None]
    borrowed: int
    left: NotRequired[int | None]
    lend: NotRequired[int | None]
    lent: int
    nominal: NotRequired[int | None]
    resource: str
    used: int


class Resources(TypedDict):
    """What each task needs. CPUs and memory are claimed only if asked for."""

    cpus: NotRequired[float | None]
    gpus: NotRequired[str | None]
    memory: NotRequired[int | None]
    shm: NotRequired[int | None]


class Retries(TypedDict):
    """When a failed job is tried again."""

    backoff: NotRequired[str | None]
    max: NotRequired[int]
    on: NotRequired[list[str]]


class RunCommand(TypedDict):
    """`POST …/sessions/{name}/commands`: what its shell is to run."""

    command: str


class Secret(TypedDict):
    """A secret of the job's workspace, and where its tasks find it."""

    env: NotRequired[str | None]
    file: NotRequired[str | None]
    name: str


class SecretList(TypedDict):
    """The secrets of a workspace, by name."""

    items: list[SecretView]


class SecretView(TypedDict):
    """A secret of a workspace. Its value is given to tasks, and shown nowhere."""

    name: str
    put_at: str
    put_by: str
    size: int
    workspace: str


class SendSignal(TypedDict):
    """`POST …/sessions/{name}/signal`: what to send to what runs."""

    signal: NotRequired[str | None]


class ServerReload(TypedDict):
    """What became of a changed configuration."""

    changed: list[str]
    needs_restart: list[str]


class ServerView(TypedDict):
    """The server itself."""

    build: str
    fingerprint: NotRequired[str | None]
    home: str
    nodes: list[NodeView]
    pid: int
    started_at: str
    unfinished_jobs: int
    version: str


class Session(TypedDict):
    """A named shell in a task."""

    directory: str
    last: int
    name: str
    opened_at: str
    over: NotRequired[str | None]
    queued: int
    running: NotRequired[int | None]
    shell: str
    terminal: Terminal


class SessionCommand(TypedDict):
    """A command that a session was given."""

    ended_at: NotRequired[str | None]
    exit_status: NotRequired[int | None]
    number: int
    output_bytes: int
    queued_at: str
    reason: NotRequired[str | None]
    started_at: NotRequired[str | None]
    state: CommandState
    text: str


class SessionList(TypedDict):
    """The sessions of a task."""

    items: list[Session]


class SetDisplayName(TypedDict):
    """`PUT /users/{user}/display-name`."""

    display_name: str


class SetPassword(TypedDict):
    """`PUT /users/{user}/password`."""

    old: NotRequired[str | None]
    password: str
    tokens: NotRequired[bool]


class SignUp(TypedDict):
    """`POST /signup`: an account that waits for somebody to say yes."""

    password: str
    user: str
    workspace: str


class Source(TypedDict):
    """Where a bundle's code came from."""

    branch: NotRequired[str | None]
    commit: str
    diff: NotRequired[ChunkId | None]
    dirty: bool


class StopJob(TypedDict):
    """`POST /jobs/{job}/stop`."""

    grace_ms: NotRequired[int | None]


class StopNotice(TypedDict):
    """That a task was told to end, and how it took that."""

    at: str
    killed: bool
    reason: str


class StreamEnd(TypedDict):
    """An SSE event `end`, the last of a followed stream: the job is over and everything was sent."""

    damaged: NotRequired[list[DamagedLog]]
    failed_rank: NotRequired[int | None]
    job: JobSummary
    missing: NotRequired[list[MissingLog]]


class TaskMetrics(TypedDict):
    """One member of a gang."""

    history: list[TaskPoint]
    node: NodeId
    now: NotRequired[TaskPoint | None]
    rank: int
    usage: NotRequired[Usage | None]


class TaskUse(TypedDict):
    """What a task uses: all its processes together. Rates are means since the measurement before."""

    cpu_millis: int
    memory_bytes: int
    processes: int
    read_bytes_per_second: NotRequired[int | None]
    written_bytes_per_second: NotRequired[int | None]


class TaskView(TypedDict):
    """One member of a gang."""

    address: NotRequired[Address | None]
    attempt: NotRequired[int]
    devices: list[int]
    ended_at: NotRequired[str | None]
    failure: NotRequired[Reason | None]
    message: NotRequired[str | None]
    name: NotRequired[str | None]
    node: NodeId
    notice: NotRequired[StopNotice | None]
    now: NotRequired[TaskPoint | None]
    outputs: NotRequired[Outputs | None]
    parting: NotRequired[Parting | None]
    phase: TaskPhase
    rank: int
    saved_at: NotRequired[str | None]
    started_at: NotRequired[str | None]
    usage: NotRequired[Usage | None]


class TokenList(TypedDict):
    """`GET /users/{user}/tokens`."""

    items: list[TokenView]


class TokenView(TypedDict):
    """A token."""

    created_at: str
    expires_at: NotRequired[str | None]
    id: str
    name: NotRequired[str | None]
    scope: Scope
    user: str
    workspace: NotRequired[str | None]


class Usage(TypedDict):
    """What a task used from its start until now, or until its end. Peaks are those of the measurements: what came and went between two of them is not seen, but for a single process that was larger than all of them."""

    cpu_milliseconds: int
    devices: NotRequired[list[DeviceUsage]]
    mean_cpu_millis: int
    mean_memory_bytes: NotRequired[int | None]
    peak_cpu_millis: int
    peak_memory_bytes: int
    peak_processes: NotRequired[int | None]
    read_bytes: NotRequired[int | None]
    samples: int
    written_bytes: NotRequired[int | None]


class UserList(TypedDict):
    """`GET /users`."""

    items: list[UserView]


class UserQuota(TypedDict):
    """What a user is due."""

    max_running: NotRequired[int | None]
    weight: NotRequired[float]


class UserQuotaView(TypedDict):
    """What a user may have, and has."""

    max_running: NotRequired[int | None]
    running: int
    user: str
    weight: float


class UserView(TypedDict):
    """A person."""

    account: NotRequired[str | None]
    admin: bool
    created_at: str
    display_name: NotRequired[str | None]
    name: str
    state: UserState
    workspaces: list[Place]


class Volume(TypedDict):
    """Storage that appears at the same path in every task."""

    name: str
    path: str
    read_only: NotRequired[bool]


class WhoAmI(TypedDict):
    """`GET /whoami`."""

    accounts: bool
    admin: bool
    scope: Scope
    token: NotRequired[str | None]
    user: str
    workspaces: list[Place]


class Why(TypedDict):
    """Why a job is as it is: what it waits for, or why it ended."""

    ahead: NotRequired[int | None]
    code: str
    constraint: NotRequired[str | None]
    display_name: NotRequired[str | None]
    help: NotRequired[str | None]
    no_estimate: NotRequired[str | None]
    options: NotRequired[list[WhyOption]]
    starts_after: NotRequired[str | None]
    starts_at: NotRequired[str | None]
    summary: str


class WhyOption(TypedDict):
    """A change to a job with which it would start now."""

    change: str
    summary: str


class WorkspaceList(TypedDict):
    """`GET /workspaces`."""

    items: list[WorkspaceView]


class WorkspaceQuota(TypedDict):
    """What a workspace is due. What is not listed has no bound."""

    cpu_millis: NotRequired[Quota | None]
    gpus: NotRequired[Quota | None]
    memory_bytes: NotRequired[Quota | None]
    models: NotRequired[dict[str, Quota]]
    weight: NotRequired[float]


class WorkspaceQuotaView(TypedDict):
    """What a workspace may have, and has."""

    resources: list[ResourceView]
    weight: float
    workspace: str


class WorkspaceSettings(TypedDict):
    """`PATCH /workspaces/{workspace}`: what is absent stays, and 0 or an empty text takes it away."""

    display_name: NotRequired[str | None]
    max_run_time_ms: NotRequired[int | None]
    priority: NotRequired[int | None]


class WorkspaceView(TypedDict):
    """A workspace."""

    created_at: str
    display_name: NotRequired[str | None]
    max_run_time_ms: NotRequired[int | None]
    members: list[MemberView]
    name: str
    priority: NotRequired[int | None]
    role: NotRequired[Role | None]


class CreateWorkspace(WorkspaceSettings):
    """`POST /workspaces`."""

    name: str


class JobDetail(JobSummary):
    """A job in full."""

    allocation: NotRequired[AllocationView | None]
    attempts: list[AttemptView]
    bundle: NotRequired[BundleId | None]
    failed_rank: NotRequired[int | None]
    launch: NotRequired[LaunchView | None]
    source: NotRequired[Source | None]
    spec: JobSpec


class NodePoint(NodeUse):
    """What a node measured at one moment."""

    at: str
    devices: list[DeviceUse]


class TaskPoint(TaskUse):
    """What a task used at one moment."""

    at: str
    devices: list[DeviceUse]
