//! Budgets of tasks whose weights stream beside computing, chosen together with admission.
//!
//! Each task has a curve: with more memory its jobs take less time. One point of each curve is chosen so that all
//! deadlines hold and the budgets together are least, or, in given memory, so that times may grow most before a deadline
//! is missed.
//!
//! The choice is an integer program that learns. It begins with "use is at most 1". Its solution is put to
//! [`demand::check`]; where that finds a miss, in an interval of length L with holder j, the sum that was too large is
//! a linear inequality over all choices, and is added:
//!
//! ```text
//!   Σᵢ nᵢ(L) · eᵢ + hⱼ − 1 ≤ L        eᵢ, hⱼ: those of the points chosen; nᵢ(L): jobs due within L
//! ```
//! Every set of budgets that is admitted satisfies all of these, so the first solution that is admitted is the least.

use crate::demand::{self, Verdict, Work};
use crate::effort::Effort;
use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOptions, Variable};

/// A budget, and what a job then takes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub budget_bytes: u64,
    /// Longest time of a job.
    pub work_ns: u64,
    /// The longest part of it that is not interrupted: all of it, or its longest step.
    pub hold_ns: u64,
}

/// A task with a curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streaming {
    pub period_ns: u64,
    pub deadline_ns: u64,
    /// Not empty.
    pub points: Vec<Point>,
}

/// One point for each task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Indices of points.
    pub points: Vec<usize>,
    pub total_bytes: u64,
    pub work: Vec<Work>,
}

/// What a solution costs beside its pivots, and what a test costs for each task that ends without a verdict.
const SOLVE_COST: u64 = 100;
const UNDECIDED_COST: u64 = 20_000;

/// How many solutions are put to the test before it is given up: many times what any set has needed.
const MOST_ROUNDS: usize = 2_000;

impl Streaming {
    /// The task as the test sees it with that point.
    pub fn work(&self, point: usize) -> Work {
        let p = self.points[point];
        Work {
            period_ns: self.period_ns,
            deadline_ns: self.deadline_ns,
            work_ns: p.work_ns,
            hold_ns: p.hold_ns,
            tail_ns: match p.hold_ns < p.work_ns {
                true => 1,
                false => p.work_ns,
            },
        }
    }

    /// All times of the curve times `permille` / 1000, rounded up.
    fn slowed(&self, permille: u64) -> Streaming {
        let scale = |ns| scaled(ns, permille);
        let points = self.points.iter().map(|p| Point {
            budget_bytes: p.budget_bytes,
            work_ns: scale(p.work_ns),
            hold_ns: scale(p.hold_ns),
        });
        Streaming {
            points: points.collect(),
            ..*self
        }
    }
}

fn scaled(ns: u64, permille: u64) -> u64 {
    let wide = (u128::from(ns) * u128::from(permille)).div_ceil(1000);
    wide.min(u128::from(u64::MAX / 4)) as u64
}

/// These points of the curves.
pub fn chosen(tasks: &[Streaming], points: &[usize]) -> Chosen {
    let each = tasks.iter().zip(points);
    Chosen {
        points: points.to_vec(),
        total_bytes: (each.clone().map(|(t, &p)| t.points[p].budget_bytes))
            .fold(0, u64::saturating_add),
        work: each.map(|(t, &p)| t.work(p)).collect(),
    }
}

/// How many thousandths of their times all jobs could take and be admitted still: 1000 and more for a set that is admitted.
pub fn slack_permille(work: &[Work]) -> u64 {
    most_permille(0, |permille| {
        let slowed: Vec<Work> = work
            .iter()
            .map(|w| Work {
                work_ns: scaled(w.work_ns, permille),
                hold_ns: scaled(w.hold_ns, permille),
                tail_ns: scaled(w.tail_ns, permille),
                ..*w
            })
            .collect();
        demand::check(&slowed).is_admitted().then_some(())
    })
    .map_or(0, |(permille, ())| permille)
}

/// More slack than this is not told apart.
const MOST_PERMILLE: u64 = 1 << 20;

/// The most thousandths that are admitted, by halving, from `low` on, which is.
fn most_permille<T>(mut low: u64, mut admits: impl FnMut(u64) -> Option<T>) -> Option<(u64, T)> {
    let mut best = None;
    let mut high = MOST_PERMILLE;
    while high - low > 1 {
        let middle = (low + high) / 2;
        match admits(middle) {
            Some(found) => {
                best = Some((middle, found));
                low = middle;
            }
            None => high = middle,
        }
    }
    best
}

/// The least memory with which all deadlines hold; `None` when no choice is admitted.
pub fn least_memory(tasks: &[Streaming]) -> Option<Chosen> {
    nearly_least_memory(tasks, 0.0, &Effort::endless())
}

/// [`least_memory`], or up to `gap` more: 0.01 is 1 %. For many tasks with many points the last per cent takes long to prove.
/// Where [`Effort::fell_short`], more memory than is needed may be found, or nothing where there is something.
pub fn nearly_least_memory(tasks: &[Streaming], gap: f64, effort: &Effort) -> Option<Chosen> {
    let fastest: Vec<usize> = tasks.iter().map(|t| fastest(&t.points)).collect();
    if !demand::check(&chosen(tasks, &fastest).work).is_admitted() && is_monotone(tasks) {
        return None;
    }
    let mut program = Program::new(tasks, effort);
    for _ in 0..MOST_ROUNDS {
        let points = program.solve(gap)?;
        let found = chosen(tasks, &points);
        match demand::check(&found.work) {
            Verdict::Admitted => return Some(found),
            Verdict::Misses {
                interval_ns,
                holder,
                ..
            } => program.learn(interval_ns, holder, &points),
            Verdict::Overloaded => program.forbid(&points),
            Verdict::Undecided => {
                effort.spend(UNDECIDED_COST * tasks.len() as u64);
                program.forbid(&points);
            }
        }
    }
    effort.fall_short();
    None
}

/// The choice within that memory whose times may grow most, and how many thousandths they may be. With a `gap`, of those that
/// need that much less than the memory; 0 is exact. What is found when the effort is spent is the least that is known.
pub fn most_slack(
    tasks: &[Streaming],
    memory_bytes: u64,
    gap: f64,
    effort: &Effort,
) -> Option<(u64, Chosen)> {
    let fits = |permille| {
        let slowed: Vec<Streaming> = tasks.iter().map(|t| t.slowed(permille)).collect();
        nearly_least_memory(&slowed, gap, effort).filter(|c| c.total_bytes <= memory_bytes)
    };
    let first = (1000, fits(1000)?);
    let (permille, found) = most_permille(1000, fits).unwrap_or(first);
    Some((permille, chosen(tasks, &found.points)))
}

fn fastest(points: &[Point]) -> usize {
    let each = points.iter().enumerate();
    each.min_by_key(|(_, p)| (p.work_ns, p.hold_ns, p.budget_bytes))
        .map_or(0, |(i, _)| i)
}

/// Whether the point with the least work has the least hold, too.
fn is_monotone(tasks: &[Streaming]) -> bool {
    tasks.iter().all(|t| {
        let best = t.points[fastest(&t.points)];
        t.points.iter().all(|p| p.hold_ns >= best.hold_ns)
    })
}

/// The integer program: one variable for each point that no other of its task beats.
struct Program<'a> {
    tasks: &'a [Streaming],
    effort: &'a Effort,
    problem: Problem,
    /// By task: variable and point.
    variables: Vec<Vec<(Variable, usize)>>,
}

impl<'a> Program<'a> {
    fn new(tasks: &'a [Streaming], effort: &'a Effort) -> Program<'a> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let all = tasks.iter().flat_map(|t| &t.points);
        let unit = all.map(|p| p.budget_bytes).max().unwrap_or(1).max(1) as f64;
        let mut variables = Vec::new();
        for task in tasks {
            let points = undominated(&task.points);
            let own: Vec<(Variable, usize)> = effort
                .thinned(points, tasks.len())
                .into_iter()
                .map(|i| {
                    let bytes = task.points[i].budget_bytes as f64 / unit;
                    (problem.add_binary_var(bytes), i)
                })
                .collect();
            let one = own.iter().map(|&(v, _)| (v, 1.0));
            problem.add_constraint(one, ComparisonOp::Eq, 1.0);
            variables.push(own);
        }
        let mut program = Program {
            tasks,
            effort,
            problem,
            variables,
        };
        let used = program.terms(|task, point| point.work_ns as f64 / task.period_ns as f64);
        program.problem.add_constraint(used, ComparisonOp::Le, 1.0);
        program
    }

    /// A coefficient for each variable.
    fn terms(&self, coefficient: impl Fn(&Streaming, &Point) -> f64) -> Vec<(Variable, f64)> {
        let each = self.tasks.iter().zip(&self.variables);
        each.flat_map(|(task, own)| {
            own.iter()
                .map(|&(v, i)| (v, coefficient(task, &task.points[i])))
        })
        .filter(|(_, c)| *c != 0.0)
        .collect()
    }

    /// The cheapest points that satisfy what was learnt.
    fn solve(&self, gap: f64) -> Option<Vec<usize>> {
        let variables: usize = self.variables.iter().map(Vec::len).sum();
        let nodes = self.effort.nodes(variables)?;
        let mut options = SolveOptions::default();
        options.mip_gap = gap;
        options.node_limit = nodes;
        let solved = self.problem.solve_with(options).ok()?;
        let stats = solved.stats();
        let pivots = stats.lp_iterations.saturating_add(SOLVE_COST);
        self.effort.spend(pivots.saturating_mul(variables as u64));
        if nodes.is_some_and(|most| stats.nodes_solved >= most) {
            self.effort.fall_short();
        }
        let solution = solved.into_solution().ok()?;
        let picks = self.variables.iter().map(|own| {
            let value = |v: &(Variable, usize)| solution.var_value(v.0);
            let most = own.iter().max_by(|a, b| value(a).total_cmp(&value(b)));
            most.map_or(0, |&(_, i)| i)
        });
        Some(picks.collect())
    }

    /// No more work may be due within an interval of that length than there is time. What is due there may be too much by a
    /// nanosecond, which the solver cannot see: then the points themselves are forbidden.
    fn learn(&mut self, interval_ns: u64, holder: Option<usize>, points: &[usize]) {
        let length = interval_ns as f64;
        let own = |task: &Streaming| std::ptr::eq(task, &self.tasks[holder.unwrap_or(0)]);
        let held = |task: &Streaming| holder.is_some() && own(task);
        let coefficient = |task: &Streaming, point: &Point| {
            let due = demand::jobs(&task.work(0), interval_ns) as f64 * point.work_ns as f64;
            let hold = match held(task) {
                true => point.hold_ns.saturating_sub(1) as f64,
                false => 0.0,
            };
            (due + hold) / length
        };
        let sum: f64 = self
            .tasks
            .iter()
            .zip(points)
            .map(|(t, &p)| coefficient(t, &t.points[p]))
            .sum();
        if sum < 1.0 + 1e-6 {
            return self.forbid(points);
        }
        let terms = self.terms(coefficient);
        self.problem.add_constraint(terms, ComparisonOp::Le, 1.0);
    }

    /// Not these points together.
    fn forbid(&mut self, points: &[usize]) {
        let each = self.variables.iter().zip(points);
        let terms: Vec<(Variable, f64)> = each
            .flat_map(|(own, &p)| own.iter().filter(move |(_, i)| *i == p))
            .map(|&(v, _)| (v, 1.0))
            .collect();
        let most = terms.len() as f64 - 1.0;
        self.problem.add_constraint(terms, ComparisonOp::Le, most);
    }
}

/// Points than which no other is as cheap, as fast and holds as short.
fn undominated(points: &[Point]) -> Vec<usize> {
    let beats = |a: usize, b: usize| {
        let (p, q) = (points[a], points[b]);
        let as_good =
            p.budget_bytes <= q.budget_bytes && p.work_ns <= q.work_ns && p.hold_ns <= q.hold_ns;
        as_good && (p != q || a < b)
    };
    (0..points.len())
        .filter(|&i| !(0..points.len()).any(|j| j != i && beats(j, i)))
        .collect()
}
