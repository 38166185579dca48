//! `muster nodes label`: what machines are labelled with.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::client::Client;
use muster_api::view::{LabelNode, NodeView};

use crate::error::{Code, Error};
use crate::session::Session;
use crate::terminal;

/// Label machines, so that jobs can choose among them
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster nodes label gpu1 gpu2 rack=r1 switch=s3
  muster nodes label gpu1 rack-                     takes the label away
  muster run --node-label rack=r1 -- python train.py

The tasks of a job stay within one `switch`, and else within one `rack`, where they can; `scheduler.topology` of config.toml names other
labels for that.")]
pub(crate) struct Args {
    /// Machines, by id or host, then labels: KEY=VALUE sets one, KEY- takes it away
    #[arg(value_name = "NODE|LABEL", required = true)]
    words: Vec<String>,
    /// Print the nodes as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let (nodes, labels) = split(&args.words)?;
    let session = Session::open().await?;
    let mut changed = Vec::new();
    for node in nodes {
        let set = async |client: &Client| client.label_node(node, &labels).await;
        changed.push(session.call(set).await?);
    }
    if args.json {
        terminal::say_json(&changed)?;
    } else {
        changed.iter().try_for_each(|node| terminal::say(&text(node)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The machines that are named, and what is to change about them.
fn split(words: &[String]) -> Result<(Vec<&str>, LabelNode), Error> {
    let mut labels = LabelNode::default();
    let mut nodes = Vec::new();
    for word in words {
        match (word.split_once('='), word.strip_suffix('-')) {
            (Some((key, value)), _) => drop(labels.labels.insert(key.into(), Some(value.into()))),
            (None, Some(key)) => drop(labels.labels.insert(key.into(), None)),
            (None, None) => nodes.push(word.as_str()),
        }
    }
    let missing = |what: &str| {
        Err(Error::new(Code::Usage, format!("no {what} is named")).hint("write NODE KEY=VALUE, or NODE KEY-"))
    };
    match (nodes.is_empty(), labels.labels.is_empty()) {
        (true, _) => missing("node"),
        (_, true) => missing("label"),
        (false, false) => Ok((nodes, labels)),
    }
}

fn text(node: &NodeView) -> String {
    let labels: Vec<String> = node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    match labels.is_empty() {
        true => format!("{} has no labels", node.id),
        false => format!("{}: {}", node.id, labels.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_nodes_and_labels_in_any_order() {
        let words = ["gpu1", "rack=r1", "gpu2", "zone-"].map(str::to_owned);
        let (nodes, labels) = split(&words).unwrap();
        assert_eq!(nodes, ["gpu1", "gpu2"]);
        let expected = [("rack".to_owned(), Some("r1".to_owned())), ("zone".to_owned(), None)];
        assert_eq!(labels.labels, expected.into());
        assert!(split(&["rack=r1".into()]).is_err() && split(&["gpu1".into()]).is_err());
    }
}
