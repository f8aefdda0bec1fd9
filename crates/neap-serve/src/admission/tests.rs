//! Tests of admission: promises, shares, releases.

use super::*;

const MS: u64 = 1_000_000;

fn promise(period_ms: u64, deadline_ms: u64) -> Option<Promise> {
    Some(Promise {
        period: Duration::from_millis(period_ms),
        deadline: Duration::from_millis(deadline_ms),
    })
}

fn measured(run_ms: u64, step_ms: u64) -> Measured {
    Measured {
        run_ns: run_ms * MS,
        step_ns: step_ms * MS,
    }
}

/// Whether a run of this model goes on to its end, whoever comes.
fn may_go_on(all: &Admission, name: &str) -> bool {
    let bound_ns = all.bound_of_run_ns(name);
    bound_ns.is_some_and(|bound_ns| Some(bound_ns) <= all.room_ns())
}

const SHARE: Share = Share {
    resident_bytes: 1,
    work_bytes: 2,
    latency_ns: 3,
};

fn with_share(run_ms: u64, step_ms: u64) -> (Share, Measured) {
    (SHARE, measured(run_ms, step_ms))
}

/// A model's figures are those of the share that it has.
#[test]
fn what_was_measured_belongs_to_a_share() {
    let all = Admission::new(0.0);
    let other = Share {
        work_bytes: 9,
        ..SHARE
    };
    let shares = |share| BTreeMap::from([("b".to_string(), share), ("a".to_string(), share)]);
    all.admit("a", promise(50, 50), with_share(9, 1), 0, None)
        .unwrap();
    all.admit("b", None, with_share(20, 5), 0, None).unwrap();
    let may_go_on = || may_go_on(&all, "b");
    assert!(may_go_on());
    all.doubt();
    assert!(!may_go_on());
    all.note_shares(&shares(other));
    assert!(!may_go_on());
    assert_eq!(all.known("b", other), None);
    // With that share its steps are too long, and it stays as it was with the first.
    let refused = all.admit("b", None, (other, measured(90, 45)), 0, None);
    assert!(refused.is_err() && !may_go_on());
    all.note_shares(&shares(SHARE));
    assert!(may_go_on());
    assert_eq!(all.known("b", SHARE), Some(measured(20, 5)));
    all.admit("b", None, (other, measured(90, 5)), 0, None)
        .unwrap();
    assert!(!may_go_on());
    assert_eq!(all.known("b", SHARE), Some(measured(20, 5)));
    // A promised model keeps its plan.
    assert_eq!(all.told()["a"].work_ns, 10 * MS);
    for at in 0..2 * MOST_SHARES as u64 {
        let share = Share {
            latency_ns: at,
            ..SHARE
        };
        all.admit("b", None, (share, measured(20, 5)), 0, None)
            .unwrap();
    }
    assert_eq!(all.known("b", SHARE), None);
}

#[test]
fn promises_that_cannot_be_kept_are_not_made() {
    let all = Admission::new(0.0);
    assert_eq!(all.room_ns(), None);
    all.admit("a", promise(50, 50), with_share(9, 1), 0, None)
        .unwrap();
    // 10 of 50: others may hold for 40 and one.
    assert_eq!(all.room_ns(), Some(40 * MS + 1));
    all.admit("slow", None, with_share(500, 30), 0, None)
        .unwrap();
    all.admit("fast", None, with_share(20, 5), 0, None).unwrap();
    assert!(may_go_on(&all, "fast") && !may_go_on(&all, "slow"));
    assert!(!may_go_on(&all, "unknown"));
    all.doubt();
    assert!(!may_go_on(&all, "fast"));
    let refused = all
        .admit("coarse", None, with_share(90, 45), 0, None)
        .unwrap_err();
    assert!(
        refused.contains("'coarse'") && refused.contains("46.0 ms"),
        "{refused}"
    );
    let refused = all
        .admit("b", promise(100, 15), with_share(9, 1), 0, None)
        .unwrap_err();
    assert!(
        refused.contains("'a' takes up to 10.0 ms every 50ms"),
        "{refused}"
    );
    let refused = all
        .admit("b", promise(40, 40), with_share(35, 1), 0, None)
        .unwrap_err();
    assert!(refused.contains("more work than time"), "{refused}");
    // What was refused left nothing.
    assert_eq!(all.room_ns(), Some(40 * MS + 1));
    assert_eq!(all.told()["a"].work_ns, 10 * MS);
    assert_eq!(all.told().len(), 1);
    let refused = all
        .admit("c", None, with_share(1, 1), 60 * MS, None)
        .unwrap_err();
    assert!(refused.contains("change of memory"), "{refused}");
    all.forget("a");
    assert!(!all.promises());
    all.admit("coarse", None, with_share(90, 45), 0, None)
        .unwrap();
}

#[test]
fn a_margin_counts() {
    let all = Admission::new(0.5);
    all.admit("a", promise(30, 30), with_share(20, 1), 0, None)
        .unwrap_err();
    all.admit("a", promise(32, 32), with_share(20, 1), 0, None)
        .unwrap();
    assert_eq!(all.told()["a"].work_ns, 31 * MS);
}

#[test]
fn so_many_requests_at_once() {
    let most = |period, deadline| promise(period, deadline).unwrap().most_at_once();
    assert_eq!((most(50, 50), most(50, 49), most(50, 120)), (3, 2, 4));
    assert_eq!(most(1, 5000), MOST_AT_ONCE);
}

#[test]
fn requests_are_released_a_period_apart() {
    let all = Admission::new(0.0);
    all.admit("a", promise(50, 20), with_share(5, 1), 0, None)
        .unwrap();
    all.admit("b", None, with_share(5, 1), 0, None).unwrap();
    let at = |now_ms: u64| {
        let released = all.release("a", now_ms * MS).expect("promised");
        released.map(|r| (r.at_ns / MS, r.due_ns / MS))
    };
    assert_eq!(at(100), Ok((100, 120)));
    assert_eq!(at(140), Ok((150, 170)));
    assert_eq!(at(150), Ok((200, 220)));
    assert_eq!(at(160), Ok((250, 270)));
    assert_eq!(at(160), Err(Duration::from_millis(40)));
    assert_eq!(at(200), Ok((300, 320)));
    assert_eq!(at(900), Ok((900, 920)));
    assert_eq!(all.release("b", 0), None);
    assert_eq!(all.release("c", 0), None);
}

/// One request comes nearly a period late; all others come as they should.
#[test]
fn who_is_late_once_does_not_stay_late() {
    let all = Admission::new(0.0);
    all.admit("a", promise(50, 20), with_share(5, 1), 0, None)
        .unwrap();
    let at = |now_ms: u64| {
        let released = all.release("a", now_ms * MS).expect("promised");
        released.expect("in time").at_ns
    };
    assert_eq!(at(100), 100 * MS);
    assert_eq!(at(195), 195 * MS);
    // Early by 45, and done before its release.
    let early = at(200);
    assert_eq!(early, 245 * MS);
    all.done_early("a", early);
    assert_eq!(at(250), 250 * MS);
    assert_eq!(at(300), 300 * MS);
    // Without that, each waits for the one before.
    assert_eq!(at(345), 350 * MS);
    assert_eq!(at(400), 400 * MS);
    // Only the last one can be taken back.
    let (first, second) = (at(410), at(450));
    all.done_early("a", first);
    assert_eq!((first, second), (450 * MS, 500 * MS));
    assert_eq!(at(550), 550 * MS);
    // However often they are done early, no more come than may.
    let mut came = 0;
    for now_ms in 1000..3000 {
        if let Some(Ok(released)) = all.release("a", now_ms * MS) {
            came += 1;
            if released.at_ns > now_ms * MS {
                all.done_early("a", released.at_ns);
            }
        }
    }
    assert!((40..=43).contains(&came), "{came}");
}

#[test]
fn requests_begin_early_where_steps_are_short() {
    let all = Admission::new(0.0);
    all.admit("a", promise(50, 50), with_share(29, 5), 0, None)
        .unwrap();
    let room_ns = all.room_ns().unwrap();
    assert_eq!(room_ns, 20 * MS + 1);
    assert!(all.may_be_early("a", room_ns));
    assert!(!all.may_be_early("a", 6 * MS - 1));
    assert!(!all.may_be_early("b", room_ns));
}

/// A model that is to take another's place: nothing is promised to both.
#[test]
fn one_model_follows_another() {
    let all = Admission::new(0.0);
    all.admit("a", promise(50, 50), with_share(29, 1), 0, None)
        .unwrap();
    assert_eq!(all.release("a", 0).unwrap().unwrap().at_ns, 0);
    let refused = all.admit("a#2", promise(50, 50), with_share(60, 1), 0, Some("a"));
    assert!(refused.unwrap_err().contains("'a' takes"));
    assert!(all.is_promised("a") && all.known("a#2", SHARE).is_none());
    // Beside each other there would be too much to do.
    all.admit("a#2", promise(40, 40), with_share(29, 1), 0, Some("a"))
        .unwrap();
    assert!(all.is_promised("a") && !all.is_promised("a#2"));
    assert_eq!(all.release("a#2", 5 * MS), None);
    assert_eq!(all.room_ns(), Some(20 * MS + 1));
    all.follow("a#2");
    assert!(!all.is_promised("a") && all.is_promised("a#2"));
    assert_eq!(all.room_ns(), Some(10 * MS + 1));
    // Still a period of the old one after its last request.
    assert_eq!(all.release("a#2", 20 * MS).unwrap().unwrap().at_ns, 50 * MS);
}
