// Loads and stores: neighbouring elements, elements a step apart, and elements at an index of their own, each of them
// also under a mask. Lanes that are not live, or where the mask is false, do not touch memory.

namespace weld {

template <class V, int Live> INLINE V load_as(const element_of<V> *from) {
  constexpr int n = count_of<V>;
  if constexpr (Live <= 0) return splat_as<V>(0);
  else if constexpr (is_pair<V>)
    return {load_as<decltype(V::lo), least(Live, n / 2)>(from), load_as<decltype(V::lo), Live - n / 2>(from + n / 2)};
  else {
    V v = {};
    std::memcpy(&v, from, least(Live, n) * sizeof *from);
    return v;
  }
}

template <int Live, class V> INLINE void store_as(element_of<V> *to, V v) {
  constexpr int n = count_of<V>;
  if constexpr (Live <= 0) return;
  else if constexpr (is_pair<V>) {
    store_as<least(Live, n / 2)>(to, v.lo);
    store_as<Live - n / 2>(to + n / 2, v.hi);
  } else std::memcpy(to, &v, least(Live, n) * sizeof *to);
}

// A vector whose lane n is *at(n); lanes from Live on are 0.
template <class V, int Live, int First = 0, class At> INLINE V pick(At at) {
  if constexpr (is_pair<V>) {
    constexpr int half = count_of<V> / 2;
    return {pick<decltype(V::lo), Live, First>(at), pick<decltype(V::lo), Live, First + half>(at)};
  } else if constexpr (count_of<V> == 1) {
    if constexpr (First < Live) return *at(First);
    else return 0;
  } else {
    V v = {};
    UNROLLED for (int lane = 0; lane < count_of<V>; ++lane) {
      if (First + lane < Live) v[lane] = *at(First + lane);
    }
    return v;
  }
}

// The lanes of a vector as an array.
template <class T, int W, int N> struct Array {
  T lane[N];
  INLINE explicit Array(vec_of<T, W, N> v) { store_as<N>(lane, v); }
};

// A mask as an array of bytes, 0 or not 0.
template <int W, int N, class M> INLINE auto flags(M mask) {
  if constexpr (same<M, bool>) return Array<int8_t, W, N>(splat_as<vec_of<int8_t, W, N>>(mask));
  else return Array<int8_t, W, N>(convert_to<vec_of<int8_t, W, N>>(mask));
}

template <int W, int N, int L, class T> INLINE vec_of<T, W, N> load(Lanes<W, N, L>, const T *from) {
  return load_as<vec_of<T, W, N>, L>(from);
}

template <int W, int N, int L, class T>
INLINE vec_of<T, W, N> load_step(Lanes<W, N, L>, const T *from, int64_t step) {
  return pick<vec_of<T, W, N>, L>([=](int lane) { return from + lane * step; });
}

template <int W, int N, int L, class T>
INLINE vec_of<T, W, N> gather(Lanes<W, N, L>, const T *from, vec_of<int64_t, W, N> index) {
  const Array<int64_t, W, N> at(index);
  return pick<vec_of<T, W, N>, L>([&](int lane) { return from + at.lane[lane]; });
}

template <int W, int N, int L, class T, class M>
INLINE vec_of<T, W, N> load_if(Lanes<W, N, L> lanes, const T *from, M mask, T other) {
  if constexpr (same<M, bool>) return mask ? load(lanes, from) : splat(lanes, other);
  else {
    if (all_lanes(mask)) return load(lanes, from);
    const auto wanted = flags<W, N>(mask);
    return pick<vec_of<T, W, N>, L>([&](int lane) { return wanted.lane[lane] ? from + lane : &other; });
  }
}

template <int W, int N, int L, class T, class M>
INLINE vec_of<T, W, N> load_step_if(Lanes<W, N, L>, const T *from, int64_t step, M mask, T other) {
  const auto wanted = flags<W, N>(mask);
  return pick<vec_of<T, W, N>, L>([&](int lane) { return wanted.lane[lane] ? from + lane * step : &other; });
}

template <int W, int N, int L, class T, class M>
INLINE vec_of<T, W, N> gather_if(Lanes<W, N, L>, const T *from, vec_of<int64_t, W, N> index, M mask, T other) {
  const Array<int64_t, W, N> at(index);
  const auto wanted = flags<W, N>(mask);
  return pick<vec_of<T, W, N>, L>([&](int lane) { return wanted.lane[lane] ? from + at.lane[lane] : &other; });
}

template <int W, int N, int L, class T> INLINE void store(Lanes<W, N, L>, T *to, vec_of<T, W, N> v) {
  store_as<L>(to, v);
}

template <int W, int N, int L, class T>
INLINE void store_step(Lanes<W, N, L>, T *to, int64_t step, vec_of<T, W, N> v) {
  const Array<T, W, N> value(v);
  UNROLLED for (int lane = 0; lane < L; ++lane) to[lane * step] = value.lane[lane];
}

template <int W, int N, int L, class T>
INLINE void scatter(Lanes<W, N, L>, T *to, vec_of<int64_t, W, N> index, vec_of<T, W, N> v) {
  const Array<int64_t, W, N> at(index);
  const Array<T, W, N> value(v);
  UNROLLED for (int lane = 0; lane < L; ++lane) to[at.lane[lane]] = value.lane[lane];
}

// A row of one thread's own, on its stack unless it is large.
template <class T, int64_t size, bool large = (size * sizeof(T) > 65536)> struct Scratch {
  alignas(64) T row[size];
};
template <class T, int64_t size> struct Scratch<T, size, true> {
  T *row = new T[size];
  ~Scratch() { delete[] row; }
};

// ---- atomic addition -------------------------------------------------------------------------

// *to = f(*to), as one step that no other thread sees half done. T is any element type of 1, 2, 4 or 8 bytes.
template <class T, class F> INLINE void update(T *to, F f) {
  typedef typename whole_number<sizeof(T)>::type Bits;
  Bits seen = __atomic_load_n((Bits *)to, __ATOMIC_RELAXED), wanted;
  do {
    wanted = bits_as<Bits>(f(bits_as<T>(seen)));
  } while (!__atomic_compare_exchange_n((Bits *)to, &seen, wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

// to[index] = sum(to[index], v) lane by lane, atomically; `sum` adds two elements.
template <int W, int N, int L, class T, class Sum>
INLINE void add_at(Lanes<W, N, L>, T *to, vec_of<int64_t, W, N> index, vec_of<T, W, N> v, Sum sum) {
  const Array<int64_t, W, N> at(index);
  const Array<T, W, N> value(v);
  for (int lane = 0; lane < L; ++lane) update(to + at.lane[lane], [&](T old) { return sum(old, value.lane[lane]); });
}

}  // namespace weld
