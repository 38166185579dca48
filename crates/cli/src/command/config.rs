//! `muster config`: every setting, its value and where it comes from; and `config.toml` edited without a text editor.

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use serde_json::json;

use crate::contexts::Store;
use crate::entry::{Hooks, Setting};
use crate::error::{Code, Error, system_message};
use crate::home::Home;
use crate::table::{Cell, Table};
use crate::terminal::{self, Colour};

mod edit;
mod effective;

/// Show or change the settings, and where each comes from
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster config                           every setting, its value, where it is from
  muster config path                      the file
  muster config set local.memory 64GB
  muster config set local.devices '[\"H100:8\"]'
  muster config unset local.memory

config.toml is that of the private server and of this machine as its node; \
they read it when they start (`muster server stop` ends both when no job runs). \
Comments in the file are kept. A value that would not be taken is refused and changes nothing.

Exit codes:
  0    done
  2    there is no such setting, the value is wrong, or the file is
  125  the file could not be written")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print where config.toml is, whether it exists or not
    #[command(after_help = "Examples:\n  $EDITOR \"$(muster config path)\"")]
    Path {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set a value in config.toml
    #[command(after_help = "\
Examples:
  muster config set server.idle_exit never
  muster config set local.slots 16")]
    Set {
        /// Which, as `muster config` shows it: local.slots
        key: String,
        /// A TOML value, or plain text
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a value out of config.toml, so that the default holds
    #[command(after_help = "Examples:\n  muster config unset local.slots")]
    Unset {
        /// Which, as `muster config` shows it: local.slots
        key: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What the private server's config.toml says of a setting, if it says anything.
pub(crate) fn setting(home: &Home, key: &str) -> Result<Option<String>, Error> {
    edit::get(&read(home)?, key)
}

pub(crate) fn run(args: &Args, hooks: &Hooks) -> Result<ExitCode, Error> {
    let home = Home::from_environment()?;
    match &args.action {
        None => list(&home, hooks, args.json),
        Some(Action::Path { json }) => path(&home, *json || args.json),
        Some(Action::Set { key, value, json }) => {
            let setting = known(key, hooks.settings)?;
            let text = edit::set(&read(&home)?, setting, value, hooks.check_config)?;
            write(&home, &text)?;
            done(&home, key, *json || args.json)
        }
        Some(Action::Unset { key, json }) => {
            let setting = known(key, hooks.settings)?;
            if let Some(text) = edit::unset(&read(&home)?, setting)? {
                write(&home, &text)?;
            }
            done(&home, key, *json || args.json)
        }
    }
}

fn list(home: &Home, hooks: &Hooks, json: bool) -> Result<ExitCode, Error> {
    let text = read(home)?;
    if let Err(fault) = (hooks.check_config)(&text) {
        return Err(Error::new(Code::ConfigInvalid, format!("{}: {fault}", home.config().display()))
            .hint("correct it, or take the setting out with `muster config unset`"));
    }
    let mut settings =
        effective::of_environment(home, &Store::new(home.clone()).current()?, |name| std::env::var_os(name));
    settings.extend(effective::of_file(&text, &home.config(), hooks.settings)?);
    if json {
        terminal::say_json(&settings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["SETTING", "VALUE", "FROM", "MEANING"]);
    for setting in settings {
        let colour = if setting.is_default() { Colour::Dim } else { Colour::Green };
        table.row(vec![
            setting.key.as_str().into(),
            Cell::coloured(setting.value.as_str(), Some(colour)),
            setting.from().into(),
            setting.meaning.into(),
        ]);
    }
    let text = table.render(terminal::width(), terminal::stdout_has_colours());
    terminal::to_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn path(home: &Home, json: bool) -> Result<ExitCode, Error> {
    let path = home.config();
    if json {
        terminal::say_json(&json!({"path": path.to_string_lossy(), "exists": path.exists()}))?;
    } else {
        terminal::say(&path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn known<'a>(key: &str, settings: &'a [Setting]) -> Result<&'a Setting, Error> {
    settings.iter().find(|setting| setting.key == key).ok_or_else(|| {
        let names: Vec<&str> = settings.iter().map(|setting| setting.key).collect();
        let near = muster_api::model::spec::nearest(key, &names)
            // The table is what people forget.
            .or_else(|| names.iter().copied().find(|name| name.ends_with(&format!(".{key}"))));
        let error = Error::new(Code::NoSuchSetting, format!("there is no setting `{key}`"));
        match near {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint(format!("there are: {}", names.join(", "))),
        }
    })
}

fn read(home: &Home) -> Result<String, Error> {
    match std::fs::read_to_string(home.config()) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Error::new(
            Code::ConfigInvalid,
            format!("cannot read {}: {}", home.config().display(), system_message(&error)),
        )),
    }
}

/// The old content or the new one, never half of it.
fn write(home: &Home, text: &str) -> Result<(), Error> {
    home.create()?;
    let path = home.config();
    // A link leads to where somebody keeps their settings, and stays a link.
    let path = path.canonicalize().unwrap_or(path);
    let new = path.with_extension("toml.new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path));
    written.map_err(|error| {
        // What could not be made cannot be removed either.
        let _ = std::fs::remove_file(&new);
        Error::io(Code::HomeUnusable, format!("write {}", path.display()), &error)
    })
}

fn done(home: &Home, key: &str, json: bool) -> Result<ExitCode, Error> {
    if json {
        terminal::say_json(&json!({"path": home.config().to_string_lossy(), "key": key}))?;
    } else if home.running().is_some() {
        terminal::note("it holds from the next start on: `muster server stop`, then any command");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_setting_is_answered_with_the_right_one() {
        let setting = |key| Setting { key, default: "", meaning: "", example: "" };
        let all = [setting("local.slots"), setting("server.idle_exit")];
        assert_eq!(known("local.slots", &all).unwrap().key, "local.slots");
        for (given, meant) in [
            ("local.slot", "`local.slots`"),
            ("slots", "`local.slots`"),
            ("x", "local.slots, server.idle_exit"),
        ] {
            let error = format!("{:?}", known(given, &all).unwrap_err());
            assert!(error.contains(meant), "{given}: {error}");
        }
    }
}
