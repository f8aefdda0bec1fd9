// Products by tiles in the memory of a workgroup. 256 invocations compute `rows` places by `panels` panels: each four channels of four
// places, in one of `parts` parts of the steps, whose sums are added at the end. A part has every `parts`-th four of steps: so what a
// result is summed of, and in which order, follows from `parts` alone, whatever the tile.
//
//   turn   │ put what was fetched │ fetch the next │ multiply │      what is fetched is on its way meanwhile
//
// A kernel has `begin`, which notes what its places are; `note`, what the next steps are; `place_of`, which place and four of steps an
// element of a tile is; `place_four`; `step_of`; and `finish_tile`.

// Places by fours of steps, each row one longer than it is, so that rows begin in other banks; then weights by panel and step.
const WEIGHTS_AT = 768u;
const NO_STEP = 0xffffffffu;

var<workgroup> tile: array<vec4<f32>, 1296>;

struct Tile {
    rows: u32,
    panels: u32,
    parts: u32,
    // Of a turn.
    steps: u32,
}

// Each as a power of two.
fn logs() -> Tile {
    let told = params.shape.tile;
    return Tile(told & 15u, (told >> 4u) & 15u, (told >> 8u) & 15u, told >> 12u);
}

// What an element of the weights of a turn is.
fn weight_of(first: u32, at: u32, group_panel: u32, log: Tile) -> vec4<f32> {
    let own_panel = group_panel + (at >> (2u + log.steps));
    let step = step_of(first, (at >> 2u) & ((1u << log.steps) - 1u));
    if own_panel >= slice_panels() || step == NO_STEP {
        return vec4<f32>(0.0);
    }
    return tile_weight(params.call.w_at + own_panel * panel_fours(panel_steps()), step, at & 3u);
}

fn put_place(at: u32, four: vec4<f32>, log: Tile) {
    let place = place_of(at, log);
    tile[place.x * ((1u << log.steps) / 4u + 1u) + place.y] = four;
}

fn put_weight(at: u32, four: vec4<f32>, log: Tile) {
    let panel = at >> (2u + log.steps);
    tile[WEIGHTS_AT + at + panel * 4u] = four;
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let log = logs();
    let first_row = group.x << log.rows;
    let first_panel = group.y << log.panels;
    let steps = 1u << log.steps;
    let row_fours = steps / 4u + 1u;
    let place_fours = (steps / 4u) << log.rows;
    let weight_fours = (steps * 4u) << log.panels;
    let quarter = (1u << log.rows) / 4u;

    // Of a part's invocations: neighbours have neighbouring fours of channels.
    let each_log = 8u - log.parts;
    let part = local >> each_log;
    let own = local & ((1u << each_log) - 1u);
    let col = own & ((4u << log.panels) - 1u);
    let row = own >> (2u + log.panels);
    let x_from = row * row_fours;
    let w_from = WEIGHTS_AT + (col >> 2u) * (steps * 4u + 4u) + (col & 3u);

    var sum_0 = vec4<f32>(0.0);
    var sum_1 = vec4<f32>(0.0);
    var sum_2 = vec4<f32>(0.0);
    var sum_3 = vec4<f32>(0.0);
    var x_0 = vec4<f32>(0.0);
    var x_1 = vec4<f32>(0.0);
    var w_0 = vec4<f32>(0.0);
    var w_1 = vec4<f32>(0.0);

    begin(local, first_row, group.z, first_panel, log);
    note(0u, local);
    workgroupBarrier();
    let all = all_steps();
    var next = 0u;
    loop {
        // What all have is what each invocation fetches of the next turn, at most two fours of both.
        if next < all {
            let a = place_of(local, log);
            if local < place_fours {
                x_0 = place_four(next, a.x, a.y);
            }
            if local + 256u < place_fours {
                let b = place_of(local + 256u, log);
                x_1 = place_four(next, b.x, b.y);
            }
            if local < weight_fours {
                w_0 = weight_of(next, local, first_panel, log);
            }
            if local + 256u < weight_fours {
                w_1 = weight_of(next, local + 256u, first_panel, log);
            }
        }
        if next > 0u {
            for (var k = part; k < steps / 4u; k += 1u << log.parts) {
                let a_0 = tile[x_from + k];
                let a_1 = tile[x_from + quarter * row_fours + k];
                let a_2 = tile[x_from + 2u * quarter * row_fours + k];
                let a_3 = tile[x_from + 3u * quarter * row_fours + k];
                let b_0 = tile[w_from + k * 16u];
                let b_1 = tile[w_from + k * 16u + 4u];
                let b_2 = tile[w_from + k * 16u + 8u];
                let b_3 = tile[w_from + k * 16u + 12u];
                sum_0 = fma(vec4<f32>(a_0.x), b_0, sum_0);
                sum_1 = fma(vec4<f32>(a_1.x), b_0, sum_1);
                sum_2 = fma(vec4<f32>(a_2.x), b_0, sum_2);
                sum_3 = fma(vec4<f32>(a_3.x), b_0, sum_3);
                sum_0 = fma(vec4<f32>(a_0.y), b_1, sum_0);
                sum_1 = fma(vec4<f32>(a_1.y), b_1, sum_1);
                sum_2 = fma(vec4<f32>(a_2.y), b_1, sum_2);
                sum_3 = fma(vec4<f32>(a_3.y), b_1, sum_3);
                sum_0 = fma(vec4<f32>(a_0.z), b_2, sum_0);
                sum_1 = fma(vec4<f32>(a_1.z), b_2, sum_1);
                sum_2 = fma(vec4<f32>(a_2.z), b_2, sum_2);
                sum_3 = fma(vec4<f32>(a_3.z), b_2, sum_3);
                sum_0 = fma(vec4<f32>(a_0.w), b_3, sum_0);
                sum_1 = fma(vec4<f32>(a_1.w), b_3, sum_1);
                sum_2 = fma(vec4<f32>(a_2.w), b_3, sum_2);
                sum_3 = fma(vec4<f32>(a_3.w), b_3, sum_3);
            }
        }
        if next >= all {
            break;
        }
        workgroupBarrier();
        if local < place_fours {
            put_place(local, x_0, log);
        }
        if local + 256u < place_fours {
            put_place(local + 256u, x_1, log);
        }
        if local < weight_fours {
            put_weight(local, w_0, log);
        }
        if local + 256u < weight_fours {
            put_weight(local + 256u, w_1, log);
        }
        next += steps;
        note(next, local);
        workgroupBarrier();
    }

    workgroupBarrier();
    tile[local] = sum_0;
    tile[256u + local] = sum_1;
    tile[512u + local] = sum_2;
    tile[768u + local] = sum_3;
    workgroupBarrier();
    for (var at = local; at < 4u << each_log; at += 256u) {
        let of_part = at & ((1u << each_log) - 1u);
        let i = at >> each_log;
        var sum = tile[i * 256u + of_part];
        for (var other = 1u; other < 1u << log.parts; other++) {
            sum += tile[i * 256u + (other << each_log) + of_part];
        }
        let place = (of_part >> (2u + log.panels)) + i * quarter;
        let own_panel = first_panel + ((of_part >> 2u) & ((1u << log.panels) - 1u));
        if own_panel < slice_panels() {
            finish_tile(first_row + place, own_panel, of_part & 3u, sum);
        }
    }
}
