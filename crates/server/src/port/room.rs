//! How many may be connected at once.
//!
//! Each connection has a seat. As long as nobody has shown a good token on it, it is a stranger's, of which an address has a few and
//! all addresses together have some; when there is one more, the oldest gives way, since whoever means well has left that state
//! behind in milliseconds. So whoever opens connections and says nothing gives up their own. When every seat is taken by
//! somebody known, the next is turned away: then the server still has descriptors left for its own work.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use muster_link::dial::Connection;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

/// Strangers from one address: many pods of a node may dial at once, and people behind one router.
const OF_ADDRESS: usize = 256;
/// Strangers from everywhere.
const STRANGERS: usize = 1024;
/// Everybody, where the system lets the server open enough files.
const ALL: usize = 16_384;

/// How many there may be of each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub of_address: usize,
    pub strangers: usize,
    pub all: usize,
}

/// All seats.
#[derive(Debug)]
pub(crate) struct Room {
    bounds: Bounds,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    next: u64,
    /// By number, and so by age.
    strangers: BTreeMap<u64, (IpAddr, CancellationToken)>,
    of_address: HashMap<IpAddr, usize>,
}

impl Taken {
    /// A stranger is none any more: known, or gone.
    fn forget(&mut self, number: u64) -> Option<CancellationToken> {
        let (address, gone) = self.strangers.remove(&number)?;
        if let Some(count) = self.of_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.of_address.remove(&address);
            }
        }
        Some(gone)
    }

    /// Has the oldest stranger who fits give way. Says whether there was one.
    fn make_way(&mut self, fits: impl Fn(IpAddr) -> bool) -> bool {
        let oldest =
            self.strangers.iter().find(|(_, (address, _))| fits(*address)).map(|(number, _)| *number);
        oldest.and_then(|number| self.forget(number)).map(|gone| gone.cancel()).is_some()
    }
}

impl Room {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, taken: Mutex::default() }
    }

    /// Half of the files that this process may open are left for everything else.
    pub fn of_process() -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let all = usize::try_from(files / 2).unwrap_or(ALL).min(ALL);
        Self::new(Bounds { of_address: OF_ADDRESS, strangers: STRANGERS.min(all), all })
    }

    /// A seat for whoever comes from there, if there is one.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Seat>> {
        let (mut taken, address) = (self.lock(), network(address));
        if taken.of_address.get(&address).is_some_and(|count| *count >= self.bounds.of_address) {
            taken.make_way(|one| one == address);
        } else if taken.strangers.len() >= self.bounds.strangers {
            taken.make_way(|_| true);
        }
        if taken.all >= self.bounds.all && !taken.make_way(|_| true) {
            return None;
        }
        let (number, gone) = (taken.next, CancellationToken::new());
        taken.next += 1;
        taken.all += 1;
        *taken.of_address.entry(address).or_default() += 1;
        taken.strangers.insert(number, (address, gone.clone()));
        Some(Arc::new(Seat { room: Arc::clone(self), number, gone }))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever has one address of the newer kind has as many as they like.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        },
        IpAddr::V4(_) => address,
    }
}

/// A connection's place, until dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    room: Arc<Room>,
    number: u64,
    gone: CancellationToken,
}

impl Seat {
    /// Somebody has shown a good token here.
    pub fn know(&self) {
        self.room.lock().forget(self.number);
    }

    pub(super) fn is_known(&self) -> bool {
        !self.room.lock().strangers.contains_key(&self.number)
    }

    /// Ends when it is somebody else's.
    pub(super) async fn given_up(&self) {
        self.gone.cancelled().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.room.lock();
        taken.forget(self.number);
        taken.all -= 1;
    }
}

/// From where a request comes, and by which connection.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub address: IpAddr,
    pub seat: Arc<Seat>,
}

/// A connection that has its seat for as long as it is open, also when it has become something else than HTTP.
pub(super) struct Seated {
    stream: Box<dyn Connection>,
    _seat: Arc<Seat>,
}

impl Seated {
    pub fn new(stream: Box<dyn Connection>, seat: Arc<Seat>) -> Self {
        Self { stream, _seat: seat }
    }
}

impl AsyncRead for Seated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Seated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(of_address: usize, strangers: usize, all: usize) -> Arc<Room> {
        Arc::new(Room::new(Bounds { of_address, strangers, all }))
    }

    fn from(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_gone(seat: &Seat) -> bool {
        seat.gone.is_cancelled()
    }

    #[test]
    fn the_oldest_stranger_of_an_address_gives_way_and_nobody_elses() {
        let room = room(2, 10, 10);
        let other = room.take(from(9)).unwrap();
        let seats: Vec<_> = (0..3).map(|_| room.take(from(1)).unwrap()).collect();
        assert_eq!(seats.iter().map(|seat| is_gone(seat)).collect::<Vec<_>>(), [true, false, false]);
        assert!(!is_gone(&other));
        // One who has shown a token is no stranger, and is never put out for one.
        seats[1].know();
        let more: Vec<_> = (0..4).map(|_| room.take(from(1)).unwrap()).collect();
        assert!(!is_gone(&seats[1]) && is_gone(&seats[2]) && !is_gone(&more[3]));
    }

    #[test]
    fn strangers_of_all_addresses_are_bounded_together() {
        let room = room(10, 3, 10);
        let seats: Vec<_> = (0..5).map(|last| room.take(from(last)).unwrap()).collect();
        assert_eq!(seats.iter().filter(|seat| is_gone(seat)).count(), 2);
        assert!(is_gone(&seats[0]) && is_gone(&seats[1]));
    }

    #[test]
    fn when_everybody_is_known_the_next_is_turned_away_until_somebody_leaves() {
        let room = room(10, 10, 2);
        let known: Vec<_> = (0..2).map(|last| room.take(from(last)).unwrap()).collect();
        known.iter().for_each(|seat| seat.know());
        assert!(room.take(from(5)).is_none());
        drop(known);
        assert!(room.take(from(5)).is_some());
        let taken = room.lock();
        assert_eq!((taken.all, taken.strangers.len(), taken.of_address.len()), (0, 0, 0));
    }

    #[test]
    fn an_address_of_the_newer_kind_is_a_network() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), from(1));
    }
}
