//! A place that can be cut off without anything there noticing.
//!
//! A scheduler that no longer hears a machine gives its work to another one after a while. What still runs on the first must be
//! over by then: so an agent that has heard neither its server nor the scheduler for that long ends its task by itself. A
//! scheduler that has never answered, since a firewall hides it, says nothing by its silence: then nothing is ended.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{Event, Service};
use crate::Fence;

/// How long somebody may take to answer, and how often they are asked at most.
const ANSWER: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(20);

/// Who answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answers {
    scheduler: bool,
    hand: bool,
}

/// What is known of who can be heard.
#[derive(Debug)]
pub(super) struct Fenced {
    options: Fence,
    heard_at: Instant,
    /// The scheduler has answered before, and its hand.
    is_known: bool,
    is_hand_known: bool,
    /// When to ask it next; none while it is being asked.
    ask_at: Option<Instant>,
    is_over: bool,
}

impl Fenced {
    pub(super) fn new(options: &Fence) -> Fenced {
        let now = Instant::now();
        let options = options.clone();
        let (is_known, is_hand_known, is_over) = (false, false, false);
        Fenced { options, heard_at: now, is_known, is_hand_known, ask_at: Some(now), is_over }
    }

    /// Somebody was heard.
    pub(super) fn hear(&mut self) {
        self.heard_at = Instant::now();
    }

    fn on_probed(&mut self, Answers { scheduler, hand }: Answers) {
        let pause = PAUSE.min(self.options.after / 4);
        self.ask_at = Some(Instant::now() + pause);
        self.is_hand_known |= hand;
        self.is_known |= scheduler;
        if scheduler && (hand || !self.is_hand_known) {
            self.hear();
        }
    }

    /// Whether nobody was heard for too long.
    fn is_cut_off(&self) -> bool {
        self.is_known && self.heard_at + self.options.after <= Instant::now()
    }

    /// When to look again. Who is heard by the server's connection asks the scheduler only until it is known that it can be.
    fn due(&self, is_connected: bool) -> Option<Instant> {
        if self.is_over || (is_connected && self.is_known) {
            return None;
        }
        let ends_at = self.is_known.then(|| self.heard_at + self.options.after).filter(|_| !is_connected);
        self.ask_at.into_iter().chain(ends_at).min()
    }
}

/// Whether any of them takes a connection.
async fn probe(addresses: Vec<String>) -> bool {
    let mut asked = JoinSet::new();
    for address in addresses {
        asked.spawn(async move { matches!(timeout(ANSWER, TcpStream::connect(address)).await, Ok(Ok(_))) });
    }
    while let Some(answered) = asked.join_next().await {
        if answered.unwrap_or(false) {
            return true;
        }
    }
    false
}

impl Service {
    /// The server was heard until now.
    pub(super) fn hear(&mut self) {
        if let Some(fence) = self.tenancy.as_mut().and_then(|tenancy| tenancy.fence.as_mut()) {
            fence.hear();
        }
    }

    pub(super) fn fence_due(&self) -> Option<Instant> {
        self.tenancy.as_ref()?.fence.as_ref()?.due(self.outbound.is_some())
    }

    pub(super) fn on_fence_due(&mut self) {
        let is_connected = self.outbound.is_some();
        let Some(fence) = self.tenancy.as_mut().and_then(|tenancy| tenancy.fence.as_mut()) else { return };
        if !is_connected && fence.is_cut_off() {
            fence.is_over = true;
            return self.on_cut_off();
        }
        if fence.ask_at.is_some_and(|at| at <= Instant::now()) {
            fence.ask_at = None;
            let Fence { scheduler, hand, .. } = fence.options.clone();
            self.work.spawn(async move {
                let (scheduler, hand) = tokio::join!(probe(scheduler), probe(hand.into_iter().collect()));
                Event::Probed(Answers { scheduler, hand })
            });
        }
    }

    pub(super) fn on_probed(&mut self, answers: Answers) {
        if let Some(fence) = self.tenancy.as_mut().and_then(|tenancy| tenancy.fence.as_mut()) {
            fence.on_probed(answers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(300);

    fn fenced() -> Fenced {
        Fenced::new(&Fence { after: AFTER, scheduler: vec![], hand: None })
    }

    /// How long it lasts until it takes itself for cut off, asked as often as it wants to be.
    async fn last(
        fenced: &mut Fenced,
        limit: Duration,
        answers: impl Fn(Duration) -> (bool, bool),
    ) -> Option<Duration> {
        let since = Instant::now();
        while let Some(due) = fenced.due(false).filter(|due| *due < since + limit) {
            tokio::time::sleep_until(due).await;
            if fenced.is_cut_off() {
                return Some(since.elapsed());
            }
            let (scheduler, hand) = answers(since.elapsed());
            fenced.on_probed(Answers { scheduler, hand });
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn who_hears_nobody_is_cut_off_after_its_time() {
        let before = |at: Duration| at.as_secs() < 1000;
        // What was last heard, or the hand of whoever is still heard.
        for who in [|is: bool| (is, false), |is: bool| (is, true), |is: bool| (true, is)] {
            let cut = last(&mut fenced(), AFTER * 10, |at| who(before(at))).await.unwrap();
            assert!((1275..=1300).contains(&cut.as_secs()), "{cut:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_scheduler_that_never_answered_says_nothing_and_neither_does_a_server_that_is_away() {
        for always in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(last(&mut fenced(), AFTER * 10, |_| always).await, None, "{always:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_hears_the_server_asks_nobody_else() {
        let mut fenced = fenced();
        assert!(fenced.due(true).is_some(), "only whether the scheduler can be heard at all");
        fenced.on_probed(Answers { scheduler: true, hand: true });
        assert_eq!(fenced.due(true), None);
        tokio::time::sleep(AFTER * 2).await;
        fenced.hear();
        assert!(!fenced.is_cut_off());
    }

    #[tokio::test]
    async fn who_takes_a_connection_is_there() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert!(probe(vec!["127.0.0.1:1".into(), address.clone()]).await);
        drop(listener);
        assert!(!probe(vec![address]).await);
        assert!(!probe(vec![]).await);
    }
}
