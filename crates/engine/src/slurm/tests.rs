//! Under which account the engine speaks with Slurm.

use super::*;

pub(super) fn options(login: Option<&str>, user: Option<&str>) -> Options {
    Options {
        dir: "/h/slurm".into(),
        ssh_dir: "/h/ssh".into(),
        socket: "/h/gate.sock".into(),
        exe: "/m".into(),
        others: "/o".into(),
        program: "ssh".into(),
        login: login.map(str::to_owned),
        port: None,
        key: None,
        user: user.map(str::to_owned),
        becomes_owners: login.is_none(),
        directory: None,
        address: None,
        programs: None,
        conf: None,
        wishes: Wishes::default(),
        patience: Duration::from_secs(60),
        kept: None,
        gate_idle: GATE_IDLE,
    }
}

#[test]
fn a_gang_is_on_the_side_of_the_account_that_it_was_handed_over_under() {
    let side = |login, user, is_root, account| {
        side_of(&options(login, user), is_root, account).map_err(|error| (error.class, error.what))
    };
    let own = |name: &str| Ok(Some(name.to_owned()));
    assert_eq!(side(None, None, true, Some("ada.l")), own("ada.l"));
    assert_eq!(side(None, Some("lab"), true, Some("ada.l")), own("ada.l"));
    assert_eq!(side(None, Some("lab"), true, None), own("lab"));
    assert_eq!(side(None, None, false, None), Ok(None), "an ordinary server is one account's");
    assert_eq!(side(Some("ada@login"), None, true, None), Ok(None), "so is a login");

    let class = |side: Result<Option<String>, (Class, String)>| side.unwrap_err().0;
    // Who has no account has no part of anybody else's.
    assert_eq!(class(side(None, Some("lab"), true, Some(""))), Class::Terminal);
    assert_eq!(class(side(None, None, true, None)), Class::Terminal, "jobs never run as root");
    // What was handed over is there, although this server cannot reach it any more.
    assert_eq!(class(side(None, None, false, Some("ada.l"))), Class::Retryable);
    assert_eq!(class(side(Some("ada@login"), None, true, Some("ada.l"))), Class::Retryable);
}

#[test]
fn accounts_have_sides_of_their_own_and_share_none() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let engine = Slurm::new(options(None, Some("lab")));
    let side = |account| engine.submitter(account).unwrap();
    assert!(Arc::ptr_eq(&side(Some("ada")), &side(Some("ada"))));
    assert!(!Arc::ptr_eq(&side(Some("ada")), &side(Some("bob"))));
    assert!(Arc::ptr_eq(&side(None), &side(Some("lab"))), "one gate for one account");
    assert_eq!(engine.capabilities().accounts, Accounts::Owners);
    let capabilities = engine.capabilities();
    assert!(!capabilities.in_place && !capabilities.submitter_environment);
}
