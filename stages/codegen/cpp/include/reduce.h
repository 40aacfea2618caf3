// Accumulators of reductions: function objects to fold lanes with, and the running extreme of argmax and argmin.

namespace weld {

struct Add { template <class V> INLINE V operator()(V a, V b) const { return add(a, b); } };
struct Mul { template <class V> INLINE V operator()(V a, V b) const { return mul(a, b); } };
struct Maximum { template <class V> INLINE V operator()(V a, V b) const { return maximum(a, b); } };
struct Minimum { template <class V> INLINE V operator()(V a, V b) const { return minimum(a, b); } };

// Addition to memory that other threads add to: of numbers, and of the types whose registers hold only bits.
struct AddBfloat16 {
  INLINE uint16_t operator()(uint16_t a, uint16_t b) const {
    constexpr Lanes<1, 1> one{};
    return to_bfloat16(one, from_bfloat16(one, a) + from_bfloat16(one, b));
  }
};
struct AddFloat16 {
  INLINE uint16_t operator()(uint16_t a, uint16_t b) const {
    constexpr Lanes<1, 1> one{};
    return to_float16(one, from_float16(one, a) + from_float16(one, b));
  }
};

// A mask, or the truth of each lane, as bytes.
template <int W, int N, int L, class M> INLINE auto bytes(Lanes<W, N, L>, M mask) {
  if constexpr (N == 1) return bool(mask);
  else return convert_to<vec_of<int8_t, W, N>>(mask);
}

// The most extreme value seen by each lane, and where it first was. A NaN is more extreme than any number.
template <class V, class I> struct Extreme {
  V value;
  I at;
};

template <class V, class I> INLINE Extreme<V, I> extreme(V value, I at) { return {value, at}; }

struct Larger { template <class V> INLINE auto operator()(V a, V b) const { return gt(a, b); } };
struct Smaller { template <class V> INLINE auto operator()(V a, V b) const { return lt(a, b); } };

template <class Order, class V> INLINE auto beats(Order order, V a, V b) {
  if constexpr (is_float<element_of<V>>)
    return logical_or(order(a, b), logical_and(isnan(a), logical_not(isnan(b))));
  else return order(a, b);
}

// `value` at position `at`, which is later than all that `best` has seen.
template <class Order, class V, class I> INLINE Extreme<V, I> take(Order order, Extreme<V, I> best, V value, I at) {
  const auto better = beats(order, value, best.value);
  return {select(better, value, best.value), select(better, at, best.at)};
}

// The position of the most extreme of all lanes; of equals, the first.
template <class Order, int W, int N, int L, class V, class I>
INLINE int64_t first_best(Order order, Lanes<W, N, L>, Extreme<V, I> best) {
  const Array<element_of<V>, W, N> value(best.value);
  const Array<element_of<I>, W, N> at(best.at);
  int winner = 0;
  for (int lane = 1; lane < N; ++lane) {
    const auto a = value.lane[lane], b = value.lane[winner];
    if (beats(order, a, b) || (!beats(order, b, a) && at.lane[lane] < at.lane[winner])) winner = lane;
  }
  return at.lane[winner];
}

}  // namespace weld
