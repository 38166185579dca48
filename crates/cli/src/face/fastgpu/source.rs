//! Where machines come from: what somebody has said, else what there is only one of.

use std::env;

use muster_api::model::spec::Target;
use muster_api::pool::PoolView;

use crate::command::config;
use crate::error::{Code, Error};
use crate::session::Session;

/// The variable that names the place.
const VARIABLE: &str = "MUSTER_MACHINES";
/// The setting that does.
const SETTING: &str = "fastgpu.machines";

/// Variables that name a region.
const REGIONS: [&str; 2] = ["ALIYUN_DEFAULT_REGION", "AWS_DEFAULT_REGION"];

/// A place, and why it is that.
pub(super) struct Place {
    /// As a job's `on` has it.
    pub on: String,
    pub why: String,
}

/// The place that machines are made on.
pub(super) async fn place(session: &Session) -> Result<Place, Error> {
    if let Some(on) = env::var(VARIABLE).ok().filter(|on| !on.is_empty()) {
        return said(on, VARIABLE);
    }
    if let Some(home) = session.home()
        && let Some(on) = config::setting(home, SETTING)?
    {
        return said(on, SETTING);
    }
    let pools = pools(session).await?;
    match pools.as_slice() {
        [] => Ok(Place { on: "local".into(), why: "there is no pool of hosts".into() }),
        [one] => Ok(Place { on: format!("ssh/{}", one.name), why: "the only pool".into() }),
        several => {
            let names: Vec<&str> = several.iter().map(|pool| pool.name.as_str()).collect();
            let message = format!("there are several pools of hosts: {}", names.join(", "));
            Err(Error::new(Code::Usage, message)
                .hint(format!("say which: export {VARIABLE}=ssh/{}", names[0])))
        }
    }
}

/// The region that is printed: the one that the environment names, as the Python packages read it, else the place of
/// new machines.
pub(super) async fn region(session: &Session) -> String {
    let named = |name| env::var(name).ok().filter(|region| !region.is_empty());
    match REGIONS.into_iter().find_map(named) {
        Some(region) => region,
        None => place(session).await.map_or_else(|_| "local".to_owned(), |place| place.on),
    }
}

fn said(on: String, by: &str) -> Result<Place, Error> {
    match on.parse::<Target>() {
        Ok(_) => Ok(Place { on, why: format!("{by} says so") }),
        Err(reason) => Err(Error::new(Code::Usage, format!("{by}: {reason}"))),
    }
}

/// The pools there are.
pub(super) async fn pools(session: &Session) -> Result<Vec<PoolView>, Error> {
    Ok(session.call(async |client| client.pools().await).await?.items)
}
