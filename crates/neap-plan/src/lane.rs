//! Lanes: what goes on at the same time. Each action has its turn in one lane, and waits for prefixes of others.
//!
//! ```text
//!   load      │ l0 │ l1 │ l2 │ …          an action starts when those before it in its lane have started
//!   compute        │ c0 │··│ c1 │ …       (a compute: when they are done),
//!   store               └ s0 ┘            and when the first so many actions of other lanes are complete
//! ```
//! A wait is a number: "the first `count` of lane `lane` are complete". Lanes go in order, so nothing more is needed, and
//! whether a plan can get stuck shows in one pass over its actions.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Index into [`Lanes`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LaneId(pub u8);

/// What lanes share when they move bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LinkId(pub u8);

/// One of the things that go on at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    pub name: Cow<'static, str>,
    pub kind: LaneKind,
    /// Lanes that move bytes over one link share what it carries. Means nothing where nothing is moved.
    pub link: LinkId,
}

/// What the actions of a lane are, and so in which of a plan's lists they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LaneKind {
    /// [`crate::ExecutionPlan::loads`]
    Load,
    /// [`crate::ExecutionPlan::computes`]
    Compute,
    /// [`crate::ExecutionPlan::stores`]
    Store,
}

/// The lanes of a plan, by [`LaneId`]. The default is a machine with one processor and one drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lanes(Cow<'static, [Lane]>);

/// When an action may start: in its turn in `lane`, when all that it waits for holds.
///
/// An action of run *r* starts when run *r* has begun, which is when all of run *r − 1* is done and its outputs are taken.
/// Only one that waits for the run before may start earlier: when that run has begun, and its waits hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Turn {
    counts: [u32; MOST_WAITS],
    /// The lane waited for, and whether it is a run back: `2 · lane + run_back`, or [`NOTHING`].
    whats: [u8; MOST_WAITS],
    pub lane: LaneId,
}

/// "The first `count` actions of that lane are complete, in the run `run_back` runs before the action's own."
///
/// Before the first run, waits for the run before it hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Wait {
    pub lane: LaneId,
    pub count: u32,
    /// 0 or 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub run_back: u8,
}

/// How many lanes one action may wait for. There may be more lanes. What must wait for more of them comes behind an
/// action of its own lane that waits for the others: prefixes hold for all that follows.
pub const MOST_WAITS: usize = 3;

const NOTHING: u8 = u8::MAX;

impl LaneId {
    /// The lanes of [`Lanes::default`]. Who reads a plan asks it for the kind of a lane instead.
    pub const LOAD: LaneId = LaneId(0);
    pub const COMPUTE: LaneId = LaneId(1);
    pub const STORE: LaneId = LaneId(2);

    /// The largest that a [`Wait`] can name.
    pub const MAX: LaneId = LaneId(126);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

const fn host(name: &'static str, kind: LaneKind) -> Lane {
    Lane {
        name: Cow::Borrowed(name),
        kind,
        link: LinkId(0),
    }
}

const HOST: &[Lane] = &[
    host("load", LaneKind::Load),
    host("compute", LaneKind::Compute),
    host("store", LaneKind::Store),
];

impl Default for Lanes {
    fn default() -> Self {
        Lanes(Cow::Borrowed(HOST))
    }
}

impl From<Vec<Lane>> for Lanes {
    fn from(lanes: Vec<Lane>) -> Self {
        Lanes(Cow::Owned(lanes))
    }
}

impl Lanes {
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (LaneId, &Lane)> + Clone {
        self.0.iter().enumerate().map(|(i, l)| (LaneId(i as u8), l))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What kind of lane it is; `None` if there is no such lane.
    pub fn kind(&self, id: LaneId) -> Option<LaneKind> {
        self.0.get(id.index()).map(|lane| lane.kind)
    }

    /// The lanes of a kind.
    pub fn of(&self, kind: LaneKind) -> impl Iterator<Item = LaneId> {
        let lanes = self.iter().filter(move |(_, lane)| lane.kind == kind);
        lanes.map(|(id, _)| id)
    }

    /// The lane of a kind, if there is one only.
    pub fn only(&self, kind: LaneKind) -> Option<LaneId> {
        let mut lanes = self.of(kind);
        lanes.next().filter(|_| lanes.next().is_none())
    }
}

impl Turn {
    /// In that lane, waiting for nothing but the run.
    pub const fn of(lane: LaneId) -> Turn {
        Turn {
            counts: [0; MOST_WAITS],
            whats: [NOTHING; MOST_WAITS],
            lane,
        }
    }

    /// Also waiting for the first `count` of that lane, of its own run. 0 is nothing to wait for.
    ///
    /// # Panics
    /// As [`Turn::wait`].
    #[must_use]
    pub fn after(self, lane: LaneId, count: u32) -> Turn {
        let run_back = 0;
        self.wait(Wait {
            lane,
            count,
            run_back,
        })
    }

    /// With that wait, in place of any other for the same lane. To wait for none of the own run is not to wait.
    ///
    /// # Panics
    /// If it would wait for more than [`MOST_WAITS`] lanes, or more than one run back, or for a lane past
    /// [`LaneId::MAX`]: planners know their lanes, and plans that are read are refused instead.
    #[must_use]
    pub fn wait(self, wait: Wait) -> Turn {
        self.with(wait).expect("a wait that a plan can have")
    }

    fn with(self, wait: Wait) -> Result<Turn, &'static str> {
        if wait.run_back > 1 {
            return Err("it waits for a run more than one back");
        }
        if wait.lane > LaneId::MAX {
            return Err("it waits for a lane that there cannot be");
        }
        let others = self.waits().filter(|other| other.lane != wait.lane);
        let says_something = wait.count > 0 || wait.run_back > 0;
        let mut turn = Turn::of(self.lane);
        let mut waits = [None; MOST_WAITS + 1];
        for (at, wait) in others.chain(says_something.then_some(wait)).enumerate() {
            waits[at] = Some(wait);
        }
        if waits[MOST_WAITS].is_some() {
            return Err("it waits for too many lanes");
        }
        // In order of lanes, so that equal turns look the same.
        waits.sort_unstable_by_key(|wait| wait.map_or(NOTHING, |wait| wait.lane.0));
        for (at, wait) in waits.into_iter().flatten().enumerate() {
            turn.counts[at] = wait.count;
            turn.whats[at] = wait.lane.0 << 1 | wait.run_back;
        }
        Ok(turn)
    }

    pub fn waits(&self) -> impl Iterator<Item = Wait> + use<> {
        let waits = self.counts.into_iter().zip(self.whats);
        let waits = waits.filter(|&(_, what)| what != NOTHING);
        waits.map(|(count, what)| Wait {
            lane: LaneId(what >> 1),
            count,
            run_back: what & 1,
        })
    }

    /// What it waits for of a lane.
    pub fn wait_for(&self, lane: LaneId) -> Option<Wait> {
        self.waits().find(|wait| wait.lane == lane)
    }

    /// How many actions of a lane it waits for, of whichever run.
    pub fn count(&self, lane: LaneId) -> u32 {
        self.wait_for(lane).map_or(0, |wait| wait.count)
    }

    /// How many runs before its own it may start: 0 or 1.
    pub fn run_back(&self) -> u8 {
        self.waits().map(|wait| wait.run_back).max().unwrap_or(0)
    }
}

impl Default for Turn {
    fn default() -> Self {
        Turn::of(LaneId::default())
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "lane {}", self.lane.0)?;
        for wait in self.waits() {
            let of = ["", " of the run before"][usize::from(wait.run_back)];
            write!(f, ", after {} of lane {}{of}", wait.count, wait.lane.0)?;
        }
        Ok(())
    }
}

/// A [`Turn`] as it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    lane: LaneId,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waits: Vec<Wait>,
}

impl Serialize for Turn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let waits = self.waits().collect();
        let lane = self.lane;
        Written { lane, waits }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Turn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { lane, waits } = Written::deserialize(deserializer)?;
        let mut turn = Turn::of(lane);
        for wait in waits {
            if turn.wait_for(wait.lane).is_some() {
                return Err(serde::de::Error::custom("it waits for a lane twice"));
            }
            turn = turn.with(wait).map_err(serde::de::Error::custom)?;
        }
        Ok(turn)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(run_back: &u8) -> bool {
    *run_back == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_small_and_keeps_one_wait_for_each_lane() {
        assert_eq!(size_of::<Turn>(), 16);
        let back = |lane, count| Wait {
            lane,
            count,
            run_back: 1,
        };
        let turn = Turn::of(LaneId(5)).after(LaneId(0), 7).after(LaneId(2), 1);
        let turn = turn.after(LaneId(0), 9).wait(back(LaneId::MAX, 0));
        assert_eq!(turn.count(LaneId(0)), 9);
        assert_eq!(turn.wait_for(LaneId::MAX), Some(back(LaneId::MAX, 0)));
        assert_eq!((turn.waits().count(), turn.run_back()), (3, 1));
        assert!(turn.with(back(LaneId(1), 1)).is_err());
        assert_eq!(turn.after(LaneId(2), 0).waits().count(), 2);
        let text = serde_json::to_string(&turn).unwrap();
        assert_eq!(serde_json::from_str::<Turn>(&text).unwrap(), turn);
        let other_way = Turn::of(LaneId(5)).wait(back(LaneId::MAX, 0));
        assert_eq!(other_way.after(LaneId(2), 1).after(LaneId(0), 9), turn);
    }

    #[test]
    fn waits_that_cannot_be_are_refused_when_a_plan_is_read() {
        for waits in [
            r#"[{"lane":1,"count":1,"run_back":2}]"#,
            r#"[{"lane":127,"count":1}]"#,
            r#"[{"lane":1,"count":1},{"lane":1,"count":2}]"#,
            r#"[{"lane":1,"count":1},{"lane":2,"count":1},{"lane":3,"count":1},{"lane":4,"count":1}]"#,
        ] {
            let text = format!(r#"{{"lane":0,"waits":{waits}}}"#);
            assert!(serde_json::from_str::<Turn>(&text).is_err(), "{waits}");
        }
    }
}
