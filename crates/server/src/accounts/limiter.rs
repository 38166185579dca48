//! How often somebody may be wrong.
//!
//! A name may be tried a few times from an address, and then once in a while; all together may fail only so often, so that an
//! attack costs the attacker time and the server next to nothing. Whoever is right is let in at once, as long as nobody at
//! their own address tries their own name.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For one name from one address: so many at once, and then one in this time.
const TRIES: f64 = 10.0;
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// For all.
const ALL_TRIES: f64 = 50.0;
const ALL_TRY_AGAIN: Duration = Duration::from_millis(200);
/// As many names and addresses are remembered; the ones that were not tried for longest go.
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
    each: HashMap<Key, Bucket>,
}

/// Counts.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    tries: Mutex<Tries>,
}

/// A try that was let through.
#[derive(Debug)]
pub(super) struct Turn(Key);

impl Limiter {
    /// A turn to try, or how long to wait for the next.
    pub fn take(&self, name: &str, address: Option<IpAddr>, now: Instant) -> Result<Turn, Duration> {
        let tries = &mut *self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (name.chars().take(64).collect(), address);
        let all = tries.all.get_or_insert(Bucket { left: ALL_TRIES, at: now });
        all.refill(ALL_TRIES, ALL_TRY_AGAIN, now);
        if tries.each.len() >= REMEMBERED && !tries.each.contains_key(&key) {
            forget(&mut tries.each, now);
        }
        let one = tries.each.entry(key.clone()).or_insert(Bucket { left: TRIES, at: now });
        one.refill(TRIES, TRY_AGAIN, now);
        match one.wait(TRY_AGAIN).max(all.wait(ALL_TRY_AGAIN)) {
            Some(wait) => Err(wait),
            None => {
                one.left -= 1.0;
                all.left -= 1.0;
                Ok(Turn(key))
            }
        }
    }

    /// It was right, and so cost nothing.
    pub fn succeeded(&self, Turn(key): Turn) {
        let tries = &mut *self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        tries.each.remove(&key);
        if let Some(all) = &mut tries.all {
            all.left += 1.0;
        }
    }
}

/// Lets go of what nobody has tried for so long that it makes no difference; failing that, of all, which the bound for all
/// together makes harmless.
fn forget(each: &mut HashMap<Key, Bucket>, now: Instant) {
    each.retain(|_, bucket| now.saturating_duration_since(bucket.at) < TRY_AGAIN.mul_f64(TRIES));
    if each.len() >= REMEMBERED {
        each.clear();
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
        // Neither another name nor the same one from elsewhere has to wait.
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
        assert!((500..=560).contains(&passed), "{passed}");
        assert!(limiter.tries.lock().unwrap().each.len() <= REMEMBERED);
    }
}
