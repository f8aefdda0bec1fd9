// `linear.wgsl` for drivers that compute on the processor; see `conv_lanes.wgsl`. One invocation: the columns of two panels for four
// rows, which are a multiple of four numbers long. With `MORE` something is added to results.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

fn finish(at: u32, is_there: bool, result: f32) {
    if is_there {
        var sum = result;
        if MORE {
            if params.call.residual == 1u {
                sum += r[params.call.r_at + at];
            } else {
                sum += y[params.call.y_at + at];
            }
        }
        y[params.call.y_at + at] = bound(vec4<f32>(sum)).x;
    }
}

fn finish_four(at: u32, columns: u32, result: vec4<f32>) {
    finish(at, columns > 0u, result.x);
    finish(at + 1u, columns > 1u, result.y);
    finish(at + 2u, columns > 2u, result.z);
    finish(at + 3u, columns > 3u, result.w);
}

// Of so many columns, if the row is one.
fn finish_row(p: u32, at: u32, columns: u32) {
    finish_four(at, columns, sums[p][0]);
    finish_four(at + 4u, max(columns, 4u) - 4u, sums[p][1]);
    finish_four(at + 8u, max(columns, 8u) - 8u, sums[p][2]);
    finish_four(at + 12u, max(columns, 12u) - 12u, sums[p][3]);
    finish_four(at + 16u, max(columns, 16u) - 16u, sums[p][4]);
    finish_four(at + 20u, max(columns, 20u) - 20u, sums[p][5]);
    finish_four(at + 24u, max(columns, 24u) - 24u, sums[p][6]);
    finish_four(at + 28u, max(columns, 28u) - 28u, sums[p][7]);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) own: u32) {
    let s = params.shape;
    if (id.x - own) * 4u >= s.rows {
        return;
    }
    // Lanes past the end compute what the last one does, and store nothing.
    let first = min(id.x * 4u, s.rows - 1u);
    let lane = own & 7u;
    // Where there is but one panel, it is computed twice, and stored once.
    let own_panel = id.y * 2u;
    let panels = min(2u, s.panels - own_panel);
    let column = (s.first_panel + own_panel) * 16u;
    let w_first = params.call.w_at + own_panel * panel_fours(s.k);
    let apart = select(0u, panel_fours(s.k), panels > 1u);
    begin_sums(w_first, w_first + apart);
    var x_at: array<u32, 4>;
    for (var p = 0u; p < 4u; p++) {
        x_at[p] = params.call.x_at + min(first + p, s.rows - 1u) * s.k / 4u;
    }
    var w_at = steps_at(w_first) + lane;
    var k = 0u;
    loop {
        let a = w[w_at];
        let b = w[w_at + 8u];
        let c = w[w_at + apart];
        let d = w[w_at + apart + 8u];
        add_panels(x[x_at[0] + k], x[x_at[1] + k], x[x_at[2] + k], x[x_at[3] + k], a, b, c, d);
        continuing {
            w_at += 16u;
            k++;
            break if k >= s.k / 4u;
        }
    }
    if id.x * 4u >= s.rows {
        return;
    }
    let count = min(4u, s.rows - first);
    let columns = min(panels * 16u, s.n - column);
    let y_first = first * s.n + column;
    finish_row(0u, y_first, columns);
    finish_row(1u, y_first + s.n, select(0u, columns, count > 1u));
    finish_row(2u, y_first + 2u * s.n, select(0u, columns, count > 2u));
    finish_row(3u, y_first + 3u * s.n, select(0u, columns, count > 3u));
    if is_bound() {
        return;
    }
    // Four columns at a time.
    let fours = (columns + 3u) / 4u;
    for (var i = 0u; i < count * fours; i++) {
        let at = params.call.y_at + y_first + i / fours * s.n + i % fours * 4u;
        let last = min(4u, columns - i % fours * 4u) - 1u;
        let next = at + vec4<u32>(0u, min(1u, last), min(2u, last), last);
        let result = activate(vec4<f32>(y[next.x], y[next.y], y[next.z], y[next.w]));
        y[next.x] = result.x;
        if last > 0u {
            y[next.y] = result.y;
        }
        if last > 1u {
            y[next.z] = result.z;
        }
        if last > 2u {
            y[next.w] = result.w;
        }
    }
}
