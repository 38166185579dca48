//! Sessions as those ask for them who call on the task.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use muster_link::control;
use muster_link::message::{Called, MAX_PIECE, SessionAnswer, SessionAsk};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};

use super::attach::attach;
use super::changes::Changes;
use super::{Geometry, Refusal, Session, Sessions};

/// The longest that somebody is made to wait for an answer: whoever wants to wait longer asks again.
const MAX_WAIT: Duration = Duration::from_secs(50);
/// How long what is written is gathered before it is sent.
const GATHER: Duration = Duration::from_millis(2);
/// How many commands are listed.
const LISTED: u32 = 100;

type Stream = BufReader<UnixStream>;

/// Answers one request, to its end.
pub(crate) async fn answer(mut stream: Stream, sessions: &Sessions, ask: SessionAsk) -> io::Result<()> {
    match ask {
        SessionAsk::Output { name, number, offset, follow } => {
            let found = sessions.get(&name).await.and_then(|session| {
                session.command(number)?;
                Ok(session)
            });
            match found {
                Ok(session) => {
                    open(&mut stream, &SessionAnswer::Output).await?;
                    output(stream, &session, number, offset, follow).await
                }
                Err(refusal) => refuse(&mut stream, &refusal).await,
            }
        }
        SessionAsk::Attach { name, columns, rows } => {
            let found = sessions.get(&name).await.and_then(|session| {
                session.check_open()?;
                session.shell().ok_or(Refusal::NoSession(name))
            });
            match found {
                Ok(shell) => {
                    open(&mut stream, &SessionAnswer::Attached).await?;
                    attach(stream, shell, Geometry { columns, rows }).await
                }
                Err(refusal) => refuse(&mut stream, &refusal).await,
            }
        }
        ask => match short(sessions, ask).await {
            Ok(answer) => open(&mut stream, &answer).await,
            Err(refusal) => refuse(&mut stream, &refusal).await,
        },
    }
}

/// What is answered with one line.
async fn short(sessions: &Sessions, ask: SessionAsk) -> Result<SessionAnswer, Refusal> {
    Ok(match ask {
        SessionAsk::List => SessionAnswer::Sessions { items: sessions.list().await },
        SessionAsk::Show { name } => SessionAnswer::Session { session: sessions.get(&name).await?.view() },
        SessionAsk::Open { name, fresh } => {
            SessionAnswer::Session { session: sessions.open(&name, fresh).await?.view() }
        }
        SessionAsk::Remove { name } => {
            sessions.remove(&name).await?;
            SessionAnswer::Done
        }
        SessionAsk::Run { name, text, key } => {
            let session = sessions.get(&name).await?;
            SessionAnswer::Command { command: session.run(&text, key.as_deref())? }
        }
        SessionAsk::Commands { name } => {
            SessionAnswer::Commands { items: sessions.get(&name).await?.commands(LISTED)? }
        }
        SessionAsk::Command { name, number, wait_ms } => {
            let session = sessions.get(&name).await?;
            let wait = Duration::from_millis(wait_ms).min(MAX_WAIT);
            SessionAnswer::Command { command: wait_for(&session, number, wait).await? }
        }
        SessionAsk::Signal { name, signal } => {
            sessions.get(&name).await?.signal(signal)?;
            SessionAnswer::Done
        }
        // They have a stream to themselves.
        SessionAsk::Output { name, .. } | SessionAsk::Attach { name, .. } => {
            return Err(Refusal::NoSession(name));
        }
    })
}

/// A command when it is over, or as it is after this time.
async fn wait_for(
    session: &Arc<Session>,
    number: u32,
    wait: Duration,
) -> Result<muster_model::session::SessionCommand, Refusal> {
    let until = Instant::now() + wait;
    let mut changed = session.changed.subscribe();
    loop {
        let command = session.command(number)?;
        if command.state.is_over() || !matches!(timeout_at(until, changed.changed()).await, Ok(Ok(()))) {
            return Ok(command);
        }
    }
}

async fn output(
    mut stream: Stream,
    session: &Session,
    number: u32,
    offset: u64,
    follow: bool,
) -> io::Result<()> {
    let path = session.store.path(number, "out");
    let (mut changed, mut written) = (session.changed.subscribe(), Changes::of_file(&path));
    let mut file = File::open(path).await?;
    file.seek(io::SeekFrom::Start(offset)).await?;
    let mut piece = vec![0; MAX_PIECE];
    loop {
        // Asked first: what is there after the end is complete.
        let is_over = session.command(number).map_or(true, |command| command.state.is_over());
        loop {
            let count = file.read(&mut piece).await?;
            if count == 0 {
                break;
            }
            stream.write_u32_le(count as u32).await?;
            stream.write_all(&piece[..count]).await?;
        }
        if is_over || !follow {
            stream.write_u32_le(0).await?;
            return stream.shutdown().await;
        }
        stream.flush().await?;
        let mut beyond = [0; 1];
        tokio::select! {
            changed = changed.changed() => if changed.is_err() { return Ok(()) },
            // A program that writes byte by byte is not followed byte by byte.
            () = written.next() => sleep(GATHER).await,
            // The caller says nothing more, so that is its end.
            _ = stream.read(&mut beyond) => return Ok(()),
        }
    }
}

async fn open(stream: &mut Stream, answer: &SessionAnswer) -> io::Result<()> {
    control::send(stream, &Called::Open).await?;
    control::send(stream, answer).await?;
    stream.flush().await
}

async fn refuse(stream: &mut Stream, refusal: &Refusal) -> io::Result<()> {
    let called = Called::Refused { code: refusal.code().to_owned(), message: refusal.to_string() };
    control::send(stream, &called).await?;
    stream.flush().await
}
