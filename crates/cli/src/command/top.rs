//! `muster top`: nodes, queue, one's own jobs and quotas on a screen that follows what happens.
//!
//! What happens at the server says when to look again, so that nothing is asked for while nothing changes; how busy devices are is nobody's
//! event, and is looked at every few seconds. The terminal is given back however this ends.

mod panel;
mod picture;
mod screen;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use crossterm::event::{Event, EventStream};
use futures::StreamExt;
use muster_api::client::{self, Client, EventItem, Events};
use muster_api::view::AllEventsQuery;
use ratatui::DefaultTerminal;
use tokio::time::{Instant, sleep_until};

use self::picture::Picture;
use self::screen::Screen;
use crate::error::{Code, Error};
use crate::interrupt::Interrupts;
use crate::session::Session;
use crate::terminal;

/// How long it is waited after something happened, for what happens with it.
const SOON: Duration = Duration::from_millis(250);
/// What is nobody's event is looked at this often.
const PERIOD: Duration = Duration::from_secs(5);

/// Watch nodes, the queue, your jobs and quotas
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster top
  muster top --once                  one picture as text, for a log or a pipe
  muster top --json | jq '.queue.waiting'

Keys: Tab or the arrows choose a part, Up and Down a line; s sorts by the next column, r turns it round; / filters all \
parts by a text, Esc takes it away; q leaves.")]
pub(crate) struct Args {
    /// Print what there is now, and end; also where there is no terminal
    #[arg(long)]
    once: bool,
    /// Print what there is now as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let picture = session.call(async |client| Picture::take(client).await).await?;
    if args.json {
        terminal::say_json(&picture)?;
    } else if args.once || !terminal::stdout_is_terminal() {
        let text = panel::text(&picture, terminal::width(), terminal::stdout_has_colours());
        terminal::to_stdout(&text)?;
    } else {
        watch(&session, picture).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn watch(session: &Session, picture: Picture) -> Result<(), Error> {
    let mut interrupts = Interrupts::listen()?;
    let broken = |error: io::Error| Error::io(Code::SystemFailed, "use the terminal", &error);
    // From here on a panic gives the terminal back, too.
    let mut terminal = ratatui::try_init().map_err(broken)?;
    let outcome = tokio::select! {
        outcome = follow(session.client(), picture, &mut terminal) => outcome,
        _ = interrupts.next() => Ok(()),
    };
    ratatui::restore();
    outcome.map_err(broken)
}

async fn follow(client: &Client, mut picture: Picture, terminal: &mut DefaultTerminal) -> io::Result<()> {
    let mut screen = Screen::default();
    let mut keys = EventStream::new();
    let mut news: Option<Events> = None;
    let mut due = Instant::now();
    loop {
        terminal.draw(|frame| screen.draw(frame, &picture))?;
        tokio::select! {
            event = keys.next() => match event.transpose()? {
                Some(Event::Key(key)) => screen.on_key(key),
                // Drawn anew, in whatever size there is now.
                Some(_) => {}
                None => return Ok(()),
            },
            () = happens(&mut news) => due = due.min(Instant::now() + SOON),
            () = sleep_until(due) => {
                if news.is_none() {
                    let from_now = AllEventsQuery { after: None, tail: Some(1), follow: true };
                    news = client.all_events(&from_now).await.ok();
                }
                look(client, &mut picture).await;
                due = Instant::now() + PERIOD;
            }
        }
        if screen.is_over() {
            return Ok(());
        }
    }
}

/// Takes another picture. A server that is away leaves the last one, with a word that it is old.
async fn look(client: &Client, picture: &mut Picture) {
    match Picture::take(client).await {
        Ok(new) => *picture = new,
        Err(error) => picture.trouble = Some(trouble(&error)),
    }
}

fn trouble(error: &client::Error) -> String {
    format!("the server does not answer: {error}")
}

/// Waits for something to happen. A stream that breaks off is opened anew with the next look.
async fn happens(news: &mut Option<Events>) {
    let Some(stream) = news else { return std::future::pending().await };
    match stream.next().await {
        Ok(Some(EventItem::Event(_))) => {}
        Ok(Some(EventItem::End(_)) | None) | Err(_) => *news = None,
    }
}
