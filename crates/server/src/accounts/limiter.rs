//! How often somebody may be wrong.
//!
//! A name may be tried a few times from an address, and then once in a while; so may all names from one address, and all from
//! everywhere. So an attack costs the attacker time and the server next to nothing. Whoever has been right before, at the same
//! address, waits only for what was tried with their own name there.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::port::network;

/// For one name from one address: so many at once, and then one in this time.
const TRIES: f64 = 10.0;
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// For all names from one address.
const ADDRESS_TRIES: f64 = 30.0;
const ADDRESS_TRY_AGAIN: Duration = Duration::from_secs(1);
/// For all.
const ALL_TRIES: f64 = 100.0;
const ALL_TRY_AGAIN: Duration = Duration::from_millis(100);
/// As many names and addresses are remembered.
const REMEMBERED: usize = 10_000;

/// What is left of a number of tries.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn refill(&mut self, most: f64, each: Duration, now: Instant) {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() / each.as_secs_f64();
        (self.left, self.at) = ((self.left + gained).min(most), now);
    }

    /// How long until there is one, if there is none.
    fn wait(&self, each: Duration) -> Option<Duration> {
        (self.left < 1.0).then(|| each.mul_f64(1.0 - self.left))
    }
}

type Key = (String, Option<IpAddr>);

#[derive(Debug, Default)]
struct Tries {
    all: Option<Bucket>,
    addresses: HashMap<Option<IpAddr>, Bucket>,
    each: HashMap<Key, Bucket>,
    /// Who was right, and from where.
    known: HashSet<Key>,
}

/// Counts.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    tries: Mutex<Tries>,
}

/// A try that was let through.
#[derive(Debug)]
pub(super) struct Turn {
    key: Key,
    is_known: bool,
}

impl Limiter {
    /// A turn to try, or how long to wait for the next.
    pub fn take(&self, name: &str, address: Option<IpAddr>, now: Instant) -> Result<Turn, Duration> {
        self.turn(name, address, false, now)
    }

    /// The same for somebody who is known otherwise, and only may not guess.
    pub fn take_known(&self, name: &str, address: Option<IpAddr>, now: Instant) -> Result<Turn, Duration> {
        self.turn(name, address, true, now)
    }

    fn turn(
        &self,
        name: &str,
        address: Option<IpAddr>,
        is_known: bool,
        now: Instant,
    ) -> Result<Turn, Duration> {
        let tries = &mut *self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        let address = address.map(network);
        let key: Key = (name.chars().take(64).collect(), address);
        let is_known = is_known || tries.known.contains(&key);
        let mut all = tries.all.unwrap_or(Bucket { left: ALL_TRIES, at: now });
        all.refill(ALL_TRIES, ALL_TRY_AGAIN, now);
        let of_address = tries.addresses.get(&address).copied();
        let mut of_address = of_address.unwrap_or(Bucket { left: ADDRESS_TRIES, at: now });
        of_address.refill(ADDRESS_TRIES, ADDRESS_TRY_AGAIN, now);
        let mut one = tries.each.get(&key).copied().unwrap_or(Bucket { left: TRIES, at: now });
        one.refill(TRIES, TRY_AGAIN, now);
        let waits = [
            one.wait(TRY_AGAIN),
            of_address.wait(ADDRESS_TRY_AGAIN).filter(|_| !is_known),
            all.wait(ALL_TRY_AGAIN).filter(|_| !is_known),
        ];
        if let Some(wait) = waits.into_iter().flatten().max() {
            return Err(wait);
        }
        one.left -= 1.0;
        if !is_known {
            of_address.left -= 1.0;
            all.left -= 1.0;
            tries.all = Some(all);
            make_room(&mut tries.addresses, now);
            tries.addresses.insert(address, of_address);
        }
        make_room(&mut tries.each, now);
        tries.each.insert(key.clone(), one);
        Ok(Turn { key, is_known })
    }

    /// It was right, and so cost nothing.
    pub fn succeeded(&self, Turn { key, is_known }: Turn) {
        let tries = &mut *self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        tries.each.remove(&key);
        if !is_known {
            tries.all.iter_mut().chain(tries.addresses.get_mut(&key.1)).for_each(|bucket| bucket.left += 1.0);
        }
        if tries.known.len() >= REMEMBERED {
            tries.known.clear();
        }
        tries.known.insert(key);
    }
}

/// Lets go of what nobody has tried for so long that it makes no difference; failing that, of all, which the bound for all
/// together makes harmless.
fn make_room<K: Eq + std::hash::Hash>(buckets: &mut HashMap<K, Bucket>, now: Instant) {
    if buckets.len() < REMEMBERED {
        return;
    }
    buckets.retain(|_, bucket| now.saturating_duration_since(bucket.at) < TRY_AGAIN.mul_f64(TRIES));
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
        assert!(limiter.tries.lock().unwrap().each.len() <= REMEMBERED);
    }
}
