//! `muster agent --install DIR`: brings this binary into a pod, for a container whose image does not have it;
//! `muster agent --pod DIR`: the agent of one rank in such a container, and with `--salvage --rank R --socket S` one that is
//! started on the server's machine where the files of such an agent were put back.
//!
//! The image is the user's: all that it must have is glibc and `/bin/sh`. Of the pod only DIR need be writable, by whoever the
//! container runs as, and nothing else is believed to be: not a home, not an account, not a right to mount.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use muster_agent::device::Lent;
use muster_agent::{Fence, Network, Options, Overlays, Tenure};
use muster_engine::pod::{HOLD, PORT, Seats};
use muster_link::dial::Server;
use rustix::fs::{Access, access};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::gang::{rank, seated, write_private};

/// What the binary is called where it is brought.
const BINARY: &str = "muster";
/// Where the pod's secret is.
const SEAT: &str = "/muster-seat";
/// What the Job says of the pod, and what the pod was told of itself.
const RANK: &str = "JOB_COMPLETION_INDEX";
const NODE: &str = "MUSTER_NODE_NAME";
const ADDRESS: &str = "MUSTER_POD_IP";
const HOST: &str = "MUSTER_HOST_IP";
/// Where the kubelet of a machine listens.
const KUBELET: u16 = 10250;
/// How often it is looked whether the binary is installed, and for how long at most; and how long whoever installed it may take
/// to end.
const GLANCE: Duration = Duration::from_millis(50);
const UNUSED: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_secs(1);
/// Where every pod is told that the API is.
const API: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];

/// Copies this binary to where any account can run it.
pub fn install(dir: &Path) -> ExitCode {
    match try_install(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: muster cannot be brought to {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn try_install(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    let (new, place) = (dir.join(format!("{BINARY}.{}", std::process::id())), dir.join(BINARY));
    let mut from = File::open("/proc/self/exe")?;
    let mut to = File::create(&new)?;
    io::copy(&mut from, &mut to)?;
    to.flush()?;
    // Whatever the umask: the container may run as anybody.
    to.set_permissions(Permissions::from_mode(0o755))?;
    drop(to);
    fs::rename(&new, &place)
}

/// Keeps a container for whoever installs from it: until that is done, or nobody wants it any more. That it was never done is this
/// one's failure, not that of the container that found nothing.
pub fn stay(dir: &Path) -> ExitCode {
    let place = dir.join(BINARY);
    let stayed = async {
        let mut ended = signal(SignalKind::terminate())?;
        let installed = async {
            while !place.exists() {
                sleep(GLANCE).await;
            }
            sleep(LINGER).await;
        };
        tokio::select! {
            _ = ended.recv() => {}
            _ = timeout(UNUSED, installed) => {}
        }
        io::Result::Ok(())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(stayed)) {
        Ok(()) if place.exists() => return ExitCode::SUCCESS,
        Ok(()) => eprintln!("error: muster was not brought into the pod"),
        Err(error) => eprintln!("error: nobody can wait for {}: {error}", dir.display()),
    }
    ExitCode::FAILURE
}

/// How the agent is to be.
pub fn options(dir: &Path, words: &[OsString]) -> anyhow::Result<Options> {
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    if words.iter().any(|word| word == "--salvage") {
        return salvage(dir, words, &variables);
    }
    let seat = std::env::var_os("MUSTER_SEAT_DIR").map_or_else(|| PathBuf::from(SEAT), PathBuf::from);
    let seats = Seats::read(&seat).with_context(|| format!("its seat in {}", seat.display()))?;
    let rank = rank(words, &variables, RANK)?;
    let own = dir.join("agent");
    let mut options = seated(&seats, rank, own.clone(), server(&seats)?)?;
    let address = own.join("address");
    if let Some(ip) = variables.get(ADDRESS).filter(|text| !text.is_empty()) {
        write_private(&address, ip)?;
    }
    options.network = Network::Named(address);
    // Whoever may mount in a container is not worth the difference.
    options.overlays = Overlays::Never;
    options.tenure = Some(Tenure {
        is_salvage: false,
        grace: Duration::from_millis(seats.grace_ms),
        patience: seats.patience_ms.map(Duration::from_millis),
        closed: None,
        host: variables.get(NODE).cloned(),
        devices: Lent::in_container(seats.devices, &variables, seats.model.clone()),
        fence: fence(&seats, &variables),
        hold: Some(seats.hold_ms.map_or(HOLD, Duration::from_millis)),
        variables: of_image(variables, dir),
    });
    Ok(options)
}

/// Tells what an agent in a pod has left, which is over.
fn salvage(dir: &Path, words: &[OsString], variables: &BTreeMap<String, String>) -> anyhow::Result<Options> {
    let rank = rank(words, variables, RANK)?;
    let socket = crate::option(words, "--socket").context("--socket is missing")?;
    let seats = Seats::read(dir).context("its seat")?;
    let mut options = seated(&seats, rank, dir.join(rank.to_string()), Server::Unix(socket.into()))?;
    options.tenure = Some(Tenure {
        is_salvage: true,
        grace: Duration::ZERO,
        patience: None,
        closed: None,
        host: None,
        devices: Lent::default(),
        variables: BTreeMap::new(),
        fence: None,
        hold: None,
    });
    Ok(options)
}

/// Where the server is: at an address, or it comes.
fn server(seats: &Seats) -> anyhow::Result<Server> {
    let Some(address) = &seats.address else {
        return Ok(Server::Called(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT)));
    };
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let host = rest.split('/').next().unwrap_or_default();
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let at = |usual: u16| if has_port { host.to_owned() } else { format!("{host}:{usual}") };
    match scheme {
        "http" => Ok(Server::Tcp(at(80))),
        "https" => {
            let pinned = seats.fingerprint.as_deref().map(str::parse).transpose()?;
            Ok(Server::Tls { address: at(443), pinned })
        }
        _ => bail!("k8s.address: `{address}` does not begin with http:// or https://, which agents speak"),
    }
}

fn fence(seats: &Seats, variables: &BTreeMap<String, String>) -> Option<Fence> {
    let after = Duration::from_millis(seats.fence_ms?);
    let [host, port] = API.map(|name| variables.get(name));
    let at = |host: &str, port: &str| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let own = host.zip(port).map(|(host, port)| at(host, port));
    let hand = variables.get(HOST).filter(|host| !host.is_empty()).map(|host| at(host, &KUBELET.to_string()));
    Some(Fence { after, scheduler: own.into_iter().chain(seats.api.iter().cloned()).collect(), hand })
}

/// What the image, the cluster and its secrets say: tasks are told as if they were the container's own command. Who has no home
/// that can be written to gets one, since so many programs need it.
fn of_image(variables: BTreeMap<String, String>, dir: &Path) -> BTreeMap<String, String> {
    let is_ours =
        |name: &str| name.starts_with("MUSTER_") || matches!(name, "_" | "PWD" | "OLDPWD" | "SHLVL");
    let mut of_image: BTreeMap<_, _> = variables.into_iter().filter(|(name, _)| !is_ours(name)).collect();
    let has_home =
        of_image.get("HOME").is_some_and(|home| home != "/" && access(home, Access::WRITE_OK).is_ok());
    let home = dir.join("home");
    if !has_home && !rustix::process::getuid().is_root() && fs::create_dir_all(&home).is_ok() {
        of_image.insert("HOME".into(), home.display().to_string());
    }
    of_image
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats() -> Seats {
        serde_json::from_str(r#"{"seats": [{"node": "node_x", "token": "t"}], "grace_ms": 10}"#).unwrap()
    }

    fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn the_binary_is_there_whole_for_any_account() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("deep/bin");
        for _ in 0..2 {
            try_install(&dir).unwrap();
        }
        let found = fs::metadata(dir.join(BINARY)).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o755);
        assert_eq!(found.len(), fs::metadata("/proc/self/exe").unwrap().len());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    }

    #[test]
    fn a_server_is_dialled_where_it_has_an_address() {
        let at = |address: Option<&str>| server(&Seats { address: address.map(str::to_owned), ..seats() });
        assert_eq!(
            at(Some("http://muster.muster.svc:7717")).unwrap(),
            Server::Tcp("muster.muster.svc:7717".into())
        );
        assert_eq!(at(Some("http://10.0.0.1/")).unwrap(), Server::Tcp("10.0.0.1:80".into()));
        assert_eq!(at(None).unwrap(), Server::Called("127.0.0.1:7719".parse().unwrap()));
        let pin = format!("sha256:{}", "0f".repeat(32));
        let pinned = Seats {
            address: Some("https://[fd00::1]:7717".into()),
            fingerprint: Some(pin.clone()),
            ..seats()
        };
        let expected = Server::Tls { address: "[fd00::1]:7717".into(), pinned: pin.parse().ok() };
        assert_eq!(server(&pinned).unwrap(), expected);
        assert_eq!(at(Some("https://lab")).unwrap(), Server::Tls { address: "lab:443".into(), pinned: None });
        assert!(at(Some("ftp://x")).is_err());
        assert!(server(&Seats { fingerprint: Some("x".into()), ..pinned }).is_err());
    }

    #[test]
    fn a_cluster_is_heard_at_every_address_it_is_known_by() {
        let told = of(&[(API[0], "10.96.0.1"), (API[1], "443"), (HOST, "10.0.0.7")]);
        let some = Seats { fence_ms: Some(5000), api: vec!["10.98.0.1:6443".into()], ..seats() };
        let fence = fence(&some, &told).unwrap();
        assert_eq!(fence.scheduler, ["10.96.0.1:443", "10.98.0.1:6443"]);
        assert_eq!(fence.hand.as_deref(), Some("10.0.0.7:10250"));
        assert_eq!(super::fence(&seats(), &told), None);
        let six = of(&[(API[0], "fd00::1"), (API[1], "443")]);
        assert_eq!(super::fence(&some, &six).unwrap().scheduler[0], "[fd00::1]:443");
    }

    #[test]
    fn tasks_are_told_what_the_image_says_and_not_what_the_agent_was() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().display().to_string();
        let told =
            of(&[("PATH", "/opt/conda/bin"), ("MUSTER_POD_IP", "1.2.3.4"), ("HOME", &home), ("_", "x")]);
        assert_eq!(of_image(told, folder.path()), of(&[("HOME", &home), ("PATH", "/opt/conda/bin")]));
    }
}
