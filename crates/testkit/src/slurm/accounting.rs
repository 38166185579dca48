//! slurmdbd, and a database of its own behind it.
//!
//! MariaDB starts in an empty directory and asks nobody who they are: nobody but root reaches its socket, and it is gone with the
//! test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::configuration::Ports;
use super::{PATH, diagnosis};
use crate::keeper::Keeper;
use crate::process;
use crate::wait::wait_for;

/// What `slurm.conf` says of it.
pub(super) fn settings(at: &Path, ports: &Ports) -> Vec<(&'static str, String)> {
    vec![
        ("AccountingStorageType", "accounting_storage/slurmdbd".into()),
        ("AccountingStorageHost", "127.0.0.1".into()),
        ("AccountingStoragePort", ports.accounting().to_string()),
        // What is called a password is the socket of munge that is used on the way there.
        ("AccountingStoragePass", at.join("munge.sock").display().to_string()),
    ]
}

/// Starts both, and has the cluster known there, without which the controller does not start.
pub(super) fn start(keeper: &mut Keeper, at: &Path, ports: &Ports) {
    let (socket, data) = (at.join("database.sock"), at.join("database"));
    fs::create_dir(&data).expect("a directory for the database");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("its permissions");
    let own = |option: &str, name: &str| format!("--{option}={}/{name}", at.display());
    let words = [
        "mariadbd".to_owned(),
        "--no-defaults".to_owned(),
        "--skip-networking".to_owned(),
        "--skip-grant-tables".to_owned(),
        "--user=root".to_owned(),
        own("datadir", "database"),
        own("socket", "database.sock"),
        own("pid-file", "database.pid"),
        // It holds a handful of jobs.
        "--innodb-buffer-pool-size=16M".to_owned(),
        "--innodb-log-file-size=8M".to_owned(),
        "--innodb-flush-log-at-trx-commit=0".to_owned(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let database = keeper.daemon(&at.join("database.out"), &[("PATH", PATH)], &words);
    wait_for("the database to listen", || {
        assert!(process::is_alive(database), "mariadbd ended\n{}", diagnosis(at));
        socket.exists()
    });
    write_configuration(at, ports);
    let (conf, socket) = (at.join("slurm.conf").display().to_string(), socket.display().to_string());
    let variables = [("PATH", PATH), ("SLURM_CONF", conf.as_str()), ("MYSQL_UNIX_PORT", socket.as_str())];
    let accounting = keeper.daemon(&at.join("slurmdbd.out"), &variables, &["slurmdbd", "-D"]);
    let port = ports.accounting();
    wait_for("slurmdbd to listen", || {
        assert!(process::is_alive(accounting), "slurmdbd ended\n{}", diagnosis(at));
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let mut register = Command::new("sacctmgr");
    register.env("SLURM_CONF", &conf).env("PATH", PATH).args(["--immediate", "add", "cluster", "test"]);
    super::succeed(&mut register);
}

fn write_configuration(at: &Path, ports: &Ports) {
    let path = at.join("slurmdbd.conf");
    let text = format!(
        "AuthType=auth/munge\nAuthInfo=socket={0}/munge.sock\nDbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={1}\n\
         SlurmUser=root\nLogFile={0}/slurmdbd.log\nPidFile={0}/slurmdbd.pid\nStorageType=accounting_storage/mysql\n\
         StorageHost=localhost\nStorageUser=root\nStorageLoc=accounting\n",
        at.display(),
        ports.accounting()
    );
    super::write(&path, &text);
    // It insists that nobody else may read it.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its permissions");
}
