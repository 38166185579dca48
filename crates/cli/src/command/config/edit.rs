//! Changes to the text of a `config.toml`, with everything else in it as it was.

use toml_edit::{Array, DocumentMut, Item, TableLike, Value, value};

use crate::entry::Setting;
use crate::error::{Code, Error};

/// The text with a value set, if whoever reads the file takes it.
pub(super) fn set(
    text: &str,
    setting: &Setting,
    given: &str,
    check: fn(&str) -> Result<(), String>,
) -> Result<String, Error> {
    let document = parse(text)?;
    let mut first_fault = None;
    for candidate in candidates(given) {
        let mut changed = document.clone();
        put(&mut changed, setting.key, candidate)?;
        let changed = changed.to_string();
        match check(&changed) {
            Ok(()) => return Ok(changed),
            // What one meaning of the text is refused for says nothing when another is taken.
            Err(fault) => drop(first_fault.get_or_insert(fault)),
        }
    }
    // A file that was wrong before stays so whatever is set in it.
    if let Err(fault) = check(text) {
        return Err(Error::new(Code::ConfigInvalid, format!("config.toml is wrong already: {fault}"))
            .hint("correct that first; `muster config path` says where it is"));
    }
    let fault = first_fault.unwrap_or_default();
    // Some faults name the setting themselves.
    let fault = last_line(&fault).trim_start_matches(setting.key).trim_start_matches(": ");
    Err(Error::new(Code::SettingInvalid, format!("{}: `{given}` cannot be its value: {fault}", setting.key))
        .hint(format!(
            "{}; for example: muster config set {} '{}'",
            setting.meaning, setting.key, setting.example
        )))
}

/// The text without a value; none if it is not there.
pub(super) fn unset(text: &str, setting: &Setting) -> Result<Option<String>, Error> {
    let mut document = parse(text)?;
    let (table, name) = split(setting.key);
    let removed = match table {
        None => document.remove(name).is_some(),
        Some(table) => document
            .get_mut(table)
            .and_then(Item::as_table_like_mut)
            .is_some_and(|table| table.remove(name).is_some()),
    };
    Ok(removed.then(|| document.to_string()))
}

/// What a setting has in the file, as it is written there.
pub(super) fn get(text: &str, key: &str) -> Result<Option<String>, Error> {
    let document = parse(text)?;
    let (table, name) = split(key);
    let item = match table {
        None => document.get(name),
        Some(table) => document.get(table).and_then(|item| item.get(name)),
    };
    Ok(item.and_then(Item::as_value).map(|value| match value.as_str() {
        Some(text) => text.to_owned(),
        // Without the comment behind it.
        None => value.clone().decorated("", "").to_string(),
    }))
}

fn parse(text: &str) -> Result<DocumentMut, Error> {
    text.parse().map_err(|error: toml_edit::TomlError| {
        Error::new(Code::ConfigInvalid, format!("config.toml is not TOML: {}", last_line(&error.to_string())))
            .hint("`muster config path` says where it is")
    })
}

fn put(document: &mut DocumentMut, key: &str, given: Value) -> Result<(), Error> {
    let (table, name) = split(key);
    let target: &mut dyn TableLike = match table {
        None => document.as_table_mut(),
        Some(table) => {
            let item = document.entry(table).or_insert_with(toml_edit::table);
            item.as_table_like_mut().ok_or_else(|| {
                Error::new(Code::ConfigInvalid, format!("config.toml: `{table}` is not a table"))
            })?
        }
    };
    match target.get_mut(name).and_then(Item::as_value_mut) {
        // A comment behind the old value stays where it is.
        Some(old) => {
            let decor = old.decor().clone();
            *old = given;
            *old.decor_mut() = decor;
        }
        None => drop(target.insert(name, value(given))),
    }
    Ok(())
}

/// What the user may have meant: TOML, a text, or a list of one text.
fn candidates(given: &str) -> Vec<Value> {
    let mut all: Vec<Value> = given.trim().parse().into_iter().collect();
    all.push(given.into());
    all.push(Value::Array(Array::from_iter([given])));
    all
}

fn split(key: &str) -> (Option<&str>, &str) {
    key.split_once('.').map_or((None, key), |(table, name)| (Some(table), name))
}

/// A fault in a file is shown with its lines, and said in the last.
fn last_line(fault: &str) -> &str {
    fault.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or(fault).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: Setting = Setting { key: "local.slots", default: "", meaning: "how many", example: "16" };
    const DEVICES: Setting = Setting { key: "local.devices", default: "", meaning: "", example: "" };

    /// Takes a whole number for slots, and a list for devices.
    fn check(text: &str) -> Result<(), String> {
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
        let local = document.get("local");
        let is_wrong =
            |name, right: fn(&Item) -> bool| local.and_then(|it| it.get(name)).is_some_and(|it| !right(it));
        if is_wrong("slots", Item::is_integer) {
            return Err("at line 1\n  |\nslots must be a number".into());
        }
        if is_wrong("devices", Item::is_array) { Err("devices must be a list".into()) } else { Ok(()) }
    }

    #[test]
    fn comments_and_order_are_kept() {
        let text = "# mine\n[local]\n# few\nslots = 2 # because\ncpus = 1\n";
        let set = set(text, &SLOTS, "4", check).unwrap();
        assert_eq!(set, text.replace("= 2 #", "= 4 #"));
        assert_eq!(get(&set, "local.slots").unwrap().as_deref(), Some("4"));
        assert_eq!(unset(&set, &SLOTS).unwrap().unwrap(), "# mine\n[local]\ncpus = 1\n");
        assert_eq!(unset("", &SLOTS).unwrap(), None);
    }

    #[test]
    fn a_value_is_toml_a_text_or_a_list_of_one() {
        assert_eq!(set("", &SLOTS, "4", check).unwrap(), "[local]\nslots = 4\n");
        assert_eq!(set("", &DEVICES, "H100:8", check).unwrap(), "[local]\ndevices = [\"H100:8\"]\n");
        assert_eq!(
            set("", &DEVICES, "[\"a\", \"b\"]", check).unwrap(),
            "[local]\ndevices = [\"a\", \"b\"]\n"
        );
        assert_eq!(
            get("[local]\ntree_kill = \"walk\"\n", "local.tree_kill").unwrap().as_deref(),
            Some("walk")
        );
    }

    #[test]
    fn a_value_that_is_refused_is_answered_with_an_example() {
        let error = format!("{:?}", set("", &SLOTS, "many", check).unwrap_err());
        assert!(error.contains("`many` cannot be its value: slots must be a number"), "{error}");
        assert!(error.contains("muster config set local.slots '16'"), "{error}");
    }

    #[test]
    fn a_file_that_is_wrong_already_is_not_blamed_on_the_value() {
        let error = set("[local]\ndevices = 3\n", &SLOTS, "4", check).unwrap_err().to_string();
        assert!(error.contains("wrong already: devices must be a list"), "{error}");
        assert!(set("[local\n", &SLOTS, "4", check).unwrap_err().to_string().contains("not TOML"));
        assert!(set("local = 1\n", &SLOTS, "4", check).unwrap_err().to_string().contains("not a table"));
    }
}
