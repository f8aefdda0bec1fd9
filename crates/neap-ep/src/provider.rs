//! The provider of one session: takes a model whose file the engine can open, as a whole, or nothing.

use crate::compiled;
use crate::factory::NAME;
use crate::host::{Host, Object, Result, Status, guarded};
use crate::tables::{ComputeTable, EpTable, FusionOptions, VERSION};
use neaptide::{Error, OpenOptions, RunOptions, Runner};
use std::ffi::c_char;
use std::ptr;

/// onnxruntime sees the table, which is first.
#[repr(C)]
struct Provider {
    table: EpTable,
    host: Host,
    /// An error in them ends the session when the model is compiled: languages' bindings go on by themselves where there is
    /// no provider.
    options: Result<(OpenOptions, RunOptions)>,
    /// The model that was taken, or why it cannot run: onnxruntime goes on by itself where it is not taken, and would
    /// have no budget.
    opened: Option<Result<Runner>>,
}

pub fn create(host: Host, options: Result<(OpenOptions, RunOptions)>) -> *mut EpTable {
    let table = EpTable {
        version: VERSION,
        name,
        capability,
        compile,
        release_computes,
        preferred_layout: None,
        should_convert_layout: None,
        set_options: None,
        on_run_start: None,
        on_run_end: None,
        create_allocator: None,
        create_stream: None,
        compatibility: None,
    };
    let provider = Provider {
        table,
        host,
        options,
        opened: None,
    };
    Box::into_raw(Box::new(provider)).cast()
}

/// # Safety
/// It was made by [`create`], and is not used again.
pub unsafe fn release(ep: *mut EpTable) {
    if !ep.is_null() {
        // SAFETY: as the caller says.
        drop(unsafe { Box::from_raw(ep.cast::<Provider>()) });
    }
}

extern "C" fn name(_: *const EpTable) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn capability(ep: *mut EpTable, graph: Object, support: Object) -> Status {
    // SAFETY: onnxruntime hands its provider back, to one thread at a time while a session is made.
    let provider = unsafe { &mut *ep.cast::<Provider>() };
    guarded(provider.host, || {
        // SAFETY: a graph, and what it is asked with.
        unsafe { provider.take(graph, support) }
    })
}

unsafe extern "C" fn compile(
    ep: *mut EpTable,
    _graphs: *const Object,
    fused_nodes: *const Object,
    count: usize,
    made: *mut *mut ComputeTable,
    _contexts: *mut Object,
) -> Status {
    // SAFETY: as for `capability`.
    let provider = unsafe { &mut *ep.cast::<Provider>() };
    guarded(provider.host, || {
        if count != 1 {
            return Err(format!(
                "{count} parts of a model cannot be compiled: it is taken as a whole"
            ));
        }
        let runner = provider.opened.take().ok_or("the model was not taken")??;
        // SAFETY: lists of one node and one place.
        unsafe { *made = compiled::create(provider.host, runner, *fused_nodes)? };
        Ok(())
    })
}

unsafe extern "C" fn release_computes(_: *mut EpTable, made: *mut *mut ComputeTable, count: usize) {
    for index in 0..count {
        // SAFETY: a list of so many, each from `compile`.
        unsafe { compiled::release(*made.add(index)) };
    }
}

impl Provider {
    /// Takes all nodes of a model that can be opened. Others are left to onnxruntime; a budget that is too small is an
    /// error of the next call, which ends the session.
    unsafe fn take(&mut self, graph: Object, support: Object) -> Result<()> {
        // SAFETY: as the caller says, here and below.
        let (is_nested, path) =
            unsafe { (self.host.is_nested(graph)?, self.host.model_path(graph)?) };
        if is_nested || path.is_empty() || self.opened.is_some() {
            return Ok(());
        }
        // SAFETY: as above.
        let nodes = unsafe { self.host.nodes(graph)? };
        if nodes.is_empty() {
            return Ok(());
        }
        self.opened = Some(match &self.options {
            Err(what) => Err(what.clone()),
            Ok((open, run)) => match opened(&path, open, run) {
                Err(Error::Unsupported(_) | Error::BadInput(_)) => return Ok(()),
                opened => opened.map_err(|e| e.to_string()),
            },
        });
        let options = FusionOptions {
            version: VERSION,
            drop_constant_initializers: true,
        };
        // SAFETY: all nodes of the graph, and options that live until the call ends.
        unsafe {
            self.host
                .take(support, &nodes, ptr::from_ref(&options).cast())
        }
    }
}

/// Where the session gives no bounds for sizes that only the data say, those of the environment, which are for several models.
fn opened(path: &str, open: &OpenOptions, run: &RunOptions) -> neaptide::Result<Runner> {
    let mut open = open.clone();
    if open.size_bounds.is_empty()
        && let Ok(text) = std::env::var("NEAPTIDE_BOUNDS")
    {
        open.size_bounds = neaptide::known_bounds(path.as_ref(), neaptide::parse_bounds(&text)?)?;
    }
    Runner::open(path, &open, run, &mut |_| {})
}
