//! Loops over several strided operands at once.
//!
//! Axes of size 1 are dropped and neighbours that every operand walks without a jump are joined,
//! so the innermost run is as long as it can be. Bodies see one run at a time.

use neap_kernels::parallel::Parallel;

/// Highest rank of an operand.
pub(crate) const MAX_RANK: usize = 12;

/// Axes of a loop: twice [`MAX_RANK`], since some operators split every axis in two.
const AXES: usize = 2 * MAX_RANK;

/// About how many elements one task handles.
pub(crate) const GRAIN: usize = 16 * 1024;

/// Signed steps, in bytes or elements as the user likes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strides {
    rank: usize,
    steps: [isize; AXES],
}

impl Strides {
    pub fn empty() -> Strides {
        Strides {
            rank: 0,
            steps: [0; AXES],
        }
    }

    /// Row-major steps of `shape`, whose elements are `unit` apart.
    pub fn row_major(shape: &[usize], unit: usize) -> Strides {
        let mut strides = Strides {
            rank: shape.len(),
            steps: [0; AXES],
        };
        let mut step = unit as isize;
        for (i, &dim) in shape.iter().enumerate().rev() {
            strides.steps[i] = step;
            step *= dim as isize;
        }
        strides
    }

    /// Steps that walk `shape` as if it were broadcast to `to`.
    pub fn broadcast(shape: &[usize], to: &[usize], unit: usize) -> Strides {
        let own = Strides::row_major(shape, unit);
        let lead = to.len() - shape.len();
        let mut strides = Strides {
            rank: to.len(),
            steps: [0; AXES],
        };
        for i in lead..to.len() {
            if shape[i - lead] != 1 {
                strides.steps[i] = own.steps[i - lead];
            }
        }
        strides
    }

    pub fn push(&mut self, step: isize) {
        self.steps[self.rank] = step;
        self.rank += 1;
    }

    pub fn as_slice(&self) -> &[isize] {
        &self.steps[..self.rank]
    }
}

impl std::ops::Index<usize> for Strides {
    type Output = isize;
    fn index(&self, axis: usize) -> &isize {
        &self.steps[axis]
    }
}

/// A loop nest over `K` operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nd<const K: usize> {
    pub rank: usize,
    pub dims: [usize; AXES],
    pub strides: [[isize; AXES]; K],
}

impl<const K: usize> Nd<K> {
    pub fn new(dims: &[usize], strides: [&Strides; K]) -> Nd<K> {
        let mut nd = Nd {
            rank: 0,
            dims: [1; AXES],
            strides: [[0; AXES]; K],
        };
        for (axis, &dim) in dims.iter().enumerate() {
            if dim == 1 {
                continue;
            }
            let joins = nd.rank > 0
                && (0..K).all(|k| nd.strides[k][nd.rank - 1] == strides[k][axis] * dim as isize);
            if !joins {
                nd.rank += 1;
                nd.dims[nd.rank - 1] = 1;
            }
            nd.dims[nd.rank - 1] *= dim;
            for k in 0..K {
                nd.strides[k][nd.rank - 1] = strides[k][axis];
            }
        }
        nd.rank = nd.rank.max(1);
        nd
    }

    pub fn total(&self) -> usize {
        self.dims[..self.rank].iter().product()
    }

    /// Steps of the innermost axis.
    pub fn inner(&self) -> [isize; K] {
        std::array::from_fn(|k| self.strides[k][self.rank - 1])
    }

    /// Calls `body(offsets, length)` for every innermost run; long runs come in pieces.
    pub fn runs(&self, par: &dyn Parallel, body: &(dyn Fn([isize; K], usize) + Sync)) {
        let total = self.total();
        if total == 0 {
            return;
        }
        let length = self.dims[self.rank - 1];
        let pieces = if length >= 2 * GRAIN {
            length.div_ceil(GRAIN)
        } else {
            1
        };
        let piece = length.div_ceil(pieces);
        let units = total / length * pieces;
        let per_task = (GRAIN / piece).max(1);
        let inner = self.inner();
        split(par, units, per_task, &|range, _| {
            let mut cursor = Cursor::at(self, range.start / pieces);
            for unit in range {
                let start = unit % pieces * piece;
                if start < length {
                    let n = piece.min(length - start);
                    let offsets =
                        std::array::from_fn(|k| cursor.offsets[k] + start as isize * inner[k]);
                    body(offsets, n);
                }
                if unit % pieces == pieces - 1 {
                    cursor.advance(self);
                }
            }
        });
    }
}

/// Position in the outer axes of a loop nest.
struct Cursor<const K: usize> {
    index: [usize; AXES],
    offsets: [isize; K],
}

impl<const K: usize> Cursor<K> {
    fn at(nd: &Nd<K>, mut outer: usize) -> Cursor<K> {
        let mut cursor = Cursor {
            index: [0; AXES],
            offsets: [0; K],
        };
        for axis in (0..nd.rank - 1).rev() {
            cursor.index[axis] = outer % nd.dims[axis];
            outer /= nd.dims[axis];
            for k in 0..K {
                cursor.offsets[k] += cursor.index[axis] as isize * nd.strides[k][axis];
            }
        }
        cursor
    }

    fn advance(&mut self, nd: &Nd<K>) {
        for axis in (0..nd.rank - 1).rev() {
            self.index[axis] += 1;
            for k in 0..K {
                self.offsets[k] += nd.strides[k][axis];
            }
            if self.index[axis] < nd.dims[axis] {
                return;
            }
            self.index[axis] = 0;
            for k in 0..K {
                self.offsets[k] -= nd.dims[axis] as isize * nd.strides[k][axis];
            }
        }
    }
}

/// Hands out `0..units` in ranges of about `per_task`, with the worker's index.
pub(crate) fn split(
    par: &dyn Parallel,
    units: usize,
    per_task: usize,
    body: &(dyn Fn(std::ops::Range<usize>, usize) + Sync),
) {
    if units == 0 {
        return;
    }
    let tasks = (units / per_task.max(1)).max(1);
    let per_task = units.div_ceil(tasks);
    let tasks = units.div_ceil(per_task);
    par.run(tasks, &|task, worker| {
        let start = task * per_task;
        body(start..(start + per_task).min(units), worker);
    });
}

/// Offset of flat row-major index `index` of `dims` under `strides`.
pub(crate) fn offset_of(mut index: usize, dims: &[usize], strides: &[isize]) -> isize {
    let mut offset = 0;
    for axis in (0..dims.len()).rev() {
        offset += (index % dims[axis]) as isize * strides[axis];
        index /= dims[axis];
    }
    offset
}

/// An address that parallel tasks share; each use vouches for its own accesses.
#[derive(Clone, Copy)]
pub(crate) struct Ptr<T>(pub *mut T);

// SAFETY: a `Ptr` only carries an address; tasks write disjoint elements.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

impl<T> Ptr<T> {
    pub fn of(ptr: *const u8) -> Ptr<T> {
        Ptr(ptr.cast_mut().cast())
    }

    pub fn get(self) -> *mut T {
        self.0
    }

    /// # Safety
    /// `index` is inside the tensor.
    #[inline(always)]
    pub unsafe fn read(self, index: usize) -> T
    where
        T: Copy,
    {
        // SAFETY: the caller keeps the index in bounds.
        unsafe { *self.0.add(index) }
    }

    /// # Safety
    /// `index` is inside the tensor, and no other task touches this element.
    #[inline(always)]
    pub unsafe fn write(self, index: usize, value: T)
    where
        T: Copy,
    {
        // SAFETY: the caller keeps the index in bounds.
        unsafe { *self.0.add(index) = value }
    }

    /// # Safety
    /// `count` elements from `index` are inside the tensor and nobody writes them meanwhile.
    #[inline(always)]
    pub unsafe fn slice<'a>(self, index: usize, count: usize) -> &'a [T] {
        // SAFETY: the caller vouches for the range.
        unsafe { std::slice::from_raw_parts(self.0.add(index), count) }
    }

    /// # Safety
    /// `count` elements from `index` are inside the tensor and nobody else touches them meanwhile.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut<'a>(self, index: usize, count: usize) -> &'a mut [T] {
        // SAFETY: the caller vouches for the range.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(index), count) }
    }
}
