//! Who may be connected at once, who goes when more come, and who waits at the door.
//!
//! ```text
//!   a new connection ─► a free place                                    all that the server does
//!                    ─► the place of one on which nothing is asked      it is closed
//!                    ─► a place at the door                             health and metrics; all else: 429
//!                    ─► waits                                           until one of these is free
//! ```
//! So whoever is connected and asks nothing takes nobody's place, and a server that is busy can say so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Places beside those of clients.
pub const AT_THE_DOOR: usize = 4;

/// A connection is given so long to ask for the first time before another may have its place.
const NEW: Duration = Duration::from_millis(100);

/// The same for one on which something was asked: clients that keep a connection use it again soon.
const KEPT: Duration = Duration::from_secs(1);

/// At the door, one that was answered has so long to hear it.
const ANSWERED: Duration = Duration::from_millis(250);

/// How often somebody who waits looks for a place.
const LOOK: Duration = Duration::from_millis(5);

/// All places of one address.
pub struct Places {
    most: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    guests: BTreeMap<u64, Arc<Guest>>,
}

/// A connection.
pub struct Guest {
    is_at_the_door: bool,
    state: Mutex<Now>,
    leave: Notify,
}

struct Now {
    has_asked: bool,
    /// Requests whose answers are not sent yet.
    under_way: usize,
    /// Answers of which a part is to be sent.
    answering: usize,
    /// When the last of that changed, or a part of an answer was taken.
    since: Instant,
}

/// A place, until this is dropped.
pub struct Seat {
    places: Arc<Places>,
    number: u64,
    pub guest: Arc<Guest>,
    /// Another connection was closed for it.
    pub is_of_another: bool,
}

/// A request whose answer is not sent yet.
pub struct UnderWay {
    guest: Arc<Guest>,
    is_answering: bool,
}

impl Places {
    pub fn new(most: usize) -> Arc<Places> {
        Arc::new(Places {
            most,
            state: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// A place as soon as there is one.
    pub async fn seat(self: &Arc<Places>) -> Seat {
        loop {
            if let Some(seat) = self.try_seat(Instant::now()) {
                return seat;
            }
            // Whoever may be sent away changes with time.
            let _ = tokio::time::timeout(LOOK, self.changed.notified()).await;
        }
    }

    fn try_seat(self: &Arc<Places>, now: Instant) -> Option<Seat> {
        let mut state = lock(&self.state);
        let door = state.guests.values().filter(|g| g.is_at_the_door).count();
        let inside = state.guests.len() - door;
        let (is_at_the_door, sent_away) = if inside < self.most {
            (false, None)
        } else if let Some(idle) = longest(&state, |guest| guest.may_go(now)) {
            (false, Some(idle))
        } else if door < AT_THE_DOOR {
            (true, None)
        } else {
            let number = longest(&state, |guest| guest.may_leave_the_door(now))?;
            (true, Some(number))
        };
        if let Some(gone) = sent_away.and_then(|number| state.guests.remove(&number)) {
            gone.leave.notify_one();
        }
        let guest = Arc::new(Guest::new(is_at_the_door, now));
        let number = state.next;
        state.next += 1;
        state.guests.insert(number, guest.clone());
        Some(Seat {
            places: self.clone(),
            number,
            guest,
            is_of_another: sent_away.is_some(),
        })
    }

    pub fn taken(&self) -> usize {
        lock(&self.state).guests.len()
    }

    /// Waits until nobody is connected.
    pub async fn empty(&self) {
        while self.taken() > 0 {
            let _ = tokio::time::timeout(LOOK, self.changed.notified()).await;
        }
    }
}

/// Of those whose turn it is to go: first who never asked, then who has been idle the longest.
fn longest(state: &State, turn: impl Fn(&Guest) -> Option<(bool, Instant)>) -> Option<u64> {
    let all = state.guests.iter();
    let may = all.filter_map(|(&number, guest)| Some((turn(guest)?, number)));
    may.min().map(|(_, number)| number)
}

impl Guest {
    fn new(is_at_the_door: bool, now: Instant) -> Guest {
        Guest {
            is_at_the_door,
            state: Mutex::new(Now {
                has_asked: false,
                under_way: 0,
                answering: 0,
                since: now,
            }),
            leave: Notify::new(),
        }
    }

    /// It is told about health and metrics, and to come again for all else.
    pub fn is_at_the_door(&self) -> bool {
        self.is_at_the_door
    }

    /// Ready when another connection has its place.
    pub async fn sent_away(&self) {
        self.leave.notified().await;
    }

    /// A request has come.
    pub fn asks(self: &Arc<Guest>) -> UnderWay {
        let mut now = lock(&self.state);
        now.has_asked = true;
        now.under_way += 1;
        now.since = Instant::now();
        UnderWay {
            guest: self.clone(),
            is_answering: false,
        }
    }

    /// Since when nothing is asked; `None` while something is.
    pub fn idle_since(&self) -> Option<Instant> {
        let now = lock(&self.state);
        (now.under_way == 0).then_some(now.since)
    }

    /// Since when no part of an answer was taken that is to be sent.
    pub fn stuck_since(&self) -> Option<Instant> {
        let now = lock(&self.state);
        (now.answering > 0).then_some(now.since)
    }

    fn may_go(&self, at: Instant) -> Option<(bool, Instant)> {
        let now = lock(&self.state);
        let patience = if now.has_asked { KEPT } else { NEW };
        let is_idle = now.under_way == 0 && at.saturating_duration_since(now.since) >= patience;
        (is_idle && !self.is_at_the_door).then_some((now.has_asked, now.since))
    }

    fn may_leave_the_door(&self, at: Instant) -> Option<(bool, Instant)> {
        let now = lock(&self.state);
        let patience = match (now.under_way, now.has_asked) {
            (0, false) => NEW,
            (0, true) => ANSWERED,
            _ => KEPT,
        };
        let is_over = at.saturating_duration_since(now.since) >= patience;
        (is_over && self.is_at_the_door).then_some((now.has_asked, now.since))
    }
}

impl UnderWay {
    /// A part of its answer waits for the client; or none is made yet.
    pub fn answers(&mut self, is_answering: bool) {
        let mut now = lock(&self.guest.state);
        now.answering -= usize::from(self.is_answering);
        now.answering += usize::from(is_answering);
        self.is_answering = is_answering;
        now.since = Instant::now();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut now = lock(&self.guest.state);
        now.under_way -= 1;
        now.answering -= usize::from(self.is_answering);
        now.since = Instant::now();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.places.state).guests.remove(&self.number);
        self.places.changed.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 3;

    fn seats(places: &Arc<Places>, count: usize, now: Instant) -> Vec<Seat> {
        (0..count)
            .map(|_| places.try_seat(now).expect("a place"))
            .collect()
    }

    #[test]
    fn one_who_asks_nothing_gives_its_place_up_and_one_who_asks_does_not() {
        let places = Places::new(MOST);
        let now = Instant::now();
        let inside = seats(&places, MOST, now);
        assert!(inside.iter().all(|s| !s.guest.is_at_the_door()));
        let asking = inside[0].guest.asks();
        let later = Instant::now() + NEW;
        let next = places.try_seat(later).unwrap();
        assert!(next.is_of_another && !next.guest.is_at_the_door());
        // The second was there before the third; the first asks.
        assert!(!lock(&places.state).guests.contains_key(&inside[1].number));
        assert!(lock(&places.state).guests.contains_key(&inside[0].number));
        // Those that asked before keep their places longer.
        drop(asking);
        let later = Instant::now() + NEW;
        let _third = places.try_seat(later).unwrap();
        assert!(!lock(&places.state).guests.contains_key(&inside[2].number));
        assert!(lock(&places.state).guests.contains_key(&inside[0].number));
        assert_eq!(places.taken(), MOST);
    }

    #[test]
    fn where_all_ask_others_wait_at_the_door() {
        let places = Places::new(MOST);
        let now = Instant::now();
        let inside = seats(&places, MOST, now);
        let _asking: Vec<UnderWay> = inside.iter().map(|seat| seat.guest.asks()).collect();
        let door = seats(&places, AT_THE_DOOR, now);
        assert!(door.iter().all(|seat| seat.guest.is_at_the_door()));
        // Nobody is sent away before it could ask.
        assert!(places.try_seat(now).is_none());
        let next = places.try_seat(Instant::now() + NEW).unwrap();
        assert!(next.guest.is_at_the_door() && next.is_of_another);
        assert_eq!(places.taken(), MOST + AT_THE_DOOR);
        drop(inside);
        assert!(!places.try_seat(now).unwrap().guest.is_at_the_door());
    }

    #[test]
    fn an_answer_that_nobody_takes_is_seen() {
        let places = Places::new(1);
        let seat = places.try_seat(Instant::now()).unwrap();
        let mut asking = seat.guest.asks();
        assert!(seat.guest.idle_since().is_none() && seat.guest.stuck_since().is_none());
        asking.answers(true);
        assert!(seat.guest.stuck_since().is_some());
        drop(asking);
        assert!(seat.guest.idle_since().is_some() && seat.guest.stuck_since().is_none());
    }
}
