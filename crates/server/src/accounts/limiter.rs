//! Login rate limiting.
//!
//! Each attempt is charged to several token buckets: one for the account at the address, one for the address, and one for
//! all callers. The bucket for all callers is split: an address that has made few attempts is charged to a bucket of its
//! own kind, which addresses that keep trying cannot drain. So a handful of addresses cannot keep others from logging in.
//!
//! A known client, an account that logged in from the same address before, is charged to its own bucket alone. Known
//! clients are read from the audit log when the server starts.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::port::network;

/// A token bucket's size, and how long one token takes to come back.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: f64,
    each: Duration,
}

/// One account from one address.
const PER_ACCOUNT: Rate = Rate { burst: 10.0, each: Duration::from_secs(5) };
/// All accounts from one address.
const PER_ADDRESS: Rate = Rate { burst: 30.0, each: Duration::from_secs(1) };
/// All addresses that have made their first attempts: bounds what hashing costs.
const REPEATED: Rate = Rate { burst: 100.0, each: Duration::from_millis(100) };
/// Attempts of an address that count as its first.
const FIRST_PER_ADDRESS: Rate = Rate { burst: 3.0, each: Duration::from_secs(300) };
/// All addresses with their first attempts.
const FIRST: Rate = Rate { burst: 200.0, each: Duration::from_millis(200) };
/// Accounts and addresses with a bucket in memory.
const REMEMBERED: usize = 10_000;
/// Addresses remembered as known, for each account.
const KNOWN_ADDRESSES: usize = 32;

/// Tokens left.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    rate: Rate,
    left: f64,
    at: Instant,
}

impl Bucket {
    fn new(rate: Rate, at: Instant) -> Self {
        Self { rate, left: rate.burst, at }
    }

    fn refilled(mut self, now: Instant) -> Self {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() / self.rate.each.as_secs_f64();
        (self.left, self.at) = ((self.left + gained).min(self.rate.burst), now);
        self
    }

    /// How long until there is a token, if there is none.
    fn wait(&self) -> Option<Duration> {
        (self.left < 1.0).then(|| self.rate.each.mul_f64(1.0 - self.left))
    }

    fn is_full_at(&self, now: Instant) -> bool {
        self.refilled(now).left >= self.rate.burst
    }
}

/// Attempts from one address.
#[derive(Debug, Clone, Copy)]
struct AddressBuckets {
    first: Bucket,
    all: Bucket,
}

impl AddressBuckets {
    fn new(now: Instant) -> Self {
        Self { first: Bucket::new(FIRST_PER_ADDRESS, now), all: Bucket::new(PER_ADDRESS, now) }
    }

    fn refilled(self, now: Instant) -> Self {
        Self { first: self.first.refilled(now), all: self.all.refilled(now) }
    }
}

type Key = (String, Option<IpAddr>);

#[derive(Debug, Default)]
struct Attempts {
    repeated: Option<Bucket>,
    first: Option<Bucket>,
    addresses: HashMap<Option<IpAddr>, AddressBuckets>,
    accounts: HashMap<Key, Bucket>,
    known: HashMap<String, VecDeque<Option<IpAddr>>>,
}

impl Attempts {
    fn is_known(&self, (name, address): &Key) -> bool {
        self.known.get(name).is_some_and(|known| known.contains(address))
    }

    /// The newest address goes to the end; beyond the bound the oldest is forgotten.
    fn remember(&mut self, (name, address): Key) {
        let known = self.known.entry(name).or_default();
        known.retain(|one| *one != address);
        if known.len() >= KNOWN_ADDRESSES {
            known.pop_front();
        }
        known.push_back(address);
    }
}

/// Counts attempts.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    attempts: Mutex<Attempts>,
}

/// An attempt that was let through.
#[derive(Debug)]
pub(super) struct Turn {
    key: Key,
    /// Whether the bucket for first attempts was charged; none for a known client.
    is_first: Option<bool>,
}

impl Turn {
    /// Whether the client is known, and so does not wait behind those who are not.
    pub fn is_known(&self) -> bool {
        self.is_first.is_none()
    }
}

impl Limiter {
    /// A limiter that knows who logged in from where before, oldest first.
    pub fn with_known(logins: impl IntoIterator<Item = (String, Option<IpAddr>)>) -> Self {
        let mut attempts = Attempts::default();
        logins.into_iter().for_each(|(name, address)| attempts.remember(key(&name, address)));
        Self { attempts: Mutex::new(attempts) }
    }

    /// Lets an attempt through, or says how long to wait for the next.
    pub fn take(&self, name: &str, address: Option<IpAddr>, now: Instant) -> Result<Turn, Duration> {
        self.turn(key(name, address), false, now)
    }

    /// The same for a caller who is authenticated, and only may not guess.
    pub fn take_known(&self, name: &str, address: Option<IpAddr>, now: Instant) -> Result<Turn, Duration> {
        self.turn(key(name, address), true, now)
    }

    fn turn(&self, key: Key, is_authenticated: bool, now: Instant) -> Result<Turn, Duration> {
        let attempts = &mut *self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let or_new = |bucket: Option<&Bucket>, rate| {
            bucket.map_or_else(|| Bucket::new(rate, now), |one| one.refilled(now))
        };
        let mut account = or_new(attempts.accounts.get(&key), PER_ACCOUNT);
        if is_authenticated || attempts.is_known(&key) {
            account.wait().map_or(Ok(()), Err)?;
            account.left -= 1.0;
            make_room(&mut attempts.accounts, |one| one.is_full_at(now));
            attempts.accounts.insert(key.clone(), account);
            return Ok(Turn { key, is_first: None });
        }
        let known = attempts.addresses.get(&key.1);
        let mut address = known.map_or_else(|| AddressBuckets::new(now), |one| one.refilled(now));
        let is_first = address.first.wait().is_none();
        let (shared, rate) =
            if is_first { (&mut attempts.first, FIRST) } else { (&mut attempts.repeated, REPEATED) };
        let mut all = or_new(shared.as_ref(), rate);
        if let Some(wait) = [&account, &address.all, &all].into_iter().filter_map(|one| one.wait()).max() {
            return Err(wait);
        }
        for bucket in [&mut account, &mut address.all, &mut all] {
            bucket.left -= 1.0;
        }
        address.first.left -= f64::from(u8::from(is_first));
        *shared = Some(all);
        make_room(&mut attempts.addresses, |one| one.first.is_full_at(now) && one.all.is_full_at(now));
        attempts.addresses.insert(key.1, address);
        make_room(&mut attempts.accounts, |one| one.is_full_at(now));
        attempts.accounts.insert(key.clone(), account);
        Ok(Turn { key, is_first: Some(is_first) })
    }

    /// The password was right: the attempt costs nothing, and the client is known from now on.
    pub fn succeeded(&self, Turn { key, is_first }: Turn) {
        let attempts = &mut *self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.accounts.remove(&key);
        if let Some(is_first) = is_first {
            let shared = if is_first { &mut attempts.first } else { &mut attempts.repeated };
            let address = attempts.addresses.get_mut(&key.1).map(|one| &mut one.all);
            shared.iter_mut().chain(address).for_each(|bucket| bucket.left += 1.0);
        }
        attempts.remember(key);
    }
}

fn key(name: &str, address: Option<IpAddr>) -> Key {
    (name.chars().take(64).collect(), address.map(network))
}

/// Removes buckets that are full again; if none is, all of them. The buckets for all callers bound what that gives away.
fn make_room<K: Eq + Hash, B>(buckets: &mut HashMap<K, B>, is_full: impl Fn(&B) -> bool) {
    if buckets.len() < REMEMBERED {
        return;
    }
    buckets.retain(|_, bucket| !is_full(bucket));
    if buckets.len() >= REMEMBERED {
        buckets.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    #[test]
    fn a_name_is_tried_a_few_times_and_then_once_in_a_while() {
        let (limiter, begin) = (Limiter::default(), Instant::now());
        let tried = |after: u64| limiter.take("ada", HERE, begin + Duration::from_secs(after)).is_ok();
        assert!((0..10).all(|_| tried(0)));
        assert!(!tried(0) && !tried(4));
        assert!(tried(5) && !tried(5), "one more");
        // Neither another name nor the same one from elsewhere has to wait, nor one of another network.
        let of = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        assert!((0..10).all(|last| limiter.take("eve", of(&format!("2001:db8::{last}")), begin).is_ok()));
        assert!(limiter.take("eve", of("2001:db8::ffff"), begin).is_err());
        assert!(limiter.take("eve", of("2001:db8:0:1::1"), begin).is_ok());
        assert!(limiter.take("bob", HERE, begin).is_ok());
        assert!(limiter.take("ada", None, begin).is_ok());
    }

    #[test]
    fn who_is_right_need_not_wait_the_next_time() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        for _ in 0..1000 {
            let turn = limiter.take("ada", HERE, now).unwrap();
            limiter.succeeded(turn);
        }
        // Also while somebody beside them tries everything.
        while limiter.take(&format!("{:x}", crate::random::bits()), HERE, now).is_ok() {}
        assert!(limiter.take("newcomer", HERE, now).is_err());
        assert!(limiter.take("ada", HERE, now).is_ok());
        assert!(limiter.take("newcomer", None, now).is_ok(), "and elsewhere");
    }

    fn address(number: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 + number)))
    }

    #[test]
    fn sixty_addresses_lock_nobody_out() {
        // As fast as they can, and as often as an address may.
        for pause in [10, 1000] {
            attack(pause);
        }
    }

    /// Half a minute of attempts from sixty addresses, each of which pauses for so many milliseconds.
    fn attack(pause: usize) {
        let begin = Instant::now();
        let limiter = Limiter::with_known([("ada".to_owned(), HERE)]);
        let mut tried = 0_u32;
        for millis in (0..30_000).step_by(pause) {
            let now = begin + Duration::from_millis(millis);
            for number in 0..60 {
                let name = format!("user{}", crate::random::bits() % 50);
                tried += u32::from(limiter.take(&name, address(number), now).is_ok());
            }
            if millis % 1000 == 0 {
                let second = u32::try_from(millis / 1000).unwrap();
                let turn = limiter.take("ada", HERE, now).expect("a client that is known");
                assert!(turn.is_known());
                limiter.succeeded(turn);
                let turn = limiter.take(&format!("user{second}"), address(1000 + second), now);
                limiter.succeeded(turn.expect("a client that is new"));
            }
        }
        assert!(tried <= 180 + 100 + 10 * 30 + 60, "what is hashed is bounded by time: {tried}");
    }

    #[test]
    fn an_account_is_known_at_so_many_addresses_and_no_account_pushes_out_another() {
        let (limiter, now) = (Limiter::with_known([("bob".to_owned(), HERE)]), Instant::now());
        for number in 0..1000 {
            let turn = limiter.take("ada", address(number), now).unwrap();
            limiter.succeeded(turn);
        }
        let attempts = limiter.attempts.lock().unwrap();
        assert_eq!(attempts.known["ada"].len(), KNOWN_ADDRESSES);
        assert!(attempts.is_known(&key("ada", address(999))) && !attempts.is_known(&key("ada", address(0))));
        assert!(attempts.is_known(&key("bob", HERE)));
    }

    #[test]
    fn many_names_together_are_bounded() {
        let (limiter, begin) = (Limiter::default(), Instant::now());
        let mut passed = 0;
        // A hundred seconds of a hundred names each second.
        for number in 0..10_000 {
            let now = begin + Duration::from_millis(number * 10);
            passed += u32::from(limiter.take(&format!("user{number}"), HERE, now).is_ok());
        }
        assert!((100..=140).contains(&passed), "{passed}");
        assert!(limiter.attempts.lock().unwrap().accounts.len() <= REMEMBERED);
    }
}
