package store

// What only tests ask of a Store.

// RevisionFloor is the lowest revision that a cell founded or restored at the
// given wall clock (Unix milliseconds) starts from: above all of the old
// revision's high part.
func RevisionFloor(wallMS int64, old uint64) uint64 {
	high, _ := highPart(wallMS / 1000)
	high = max(high, old>>revisionCountBits+1)
	return min(high, 1<<(63-revisionCountBits)-1) << revisionCountBits
}

// editSession has f edit the record of a session, if there is one.
func (s *Store) editSession(id uint64, f func(*session)) {
	if x, ok := s.ownSession(id); ok {
		f(x)
		s.rehashSession(id, x)
	}
}

// Noted calls f for the sessions that are noted as silent, with numbers above
// after, in the order of their numbers, until f returns false.
func (s *Store) Noted(after uint64, f func(SessionView) bool) {
	s.noted.AscendGreaterOrEqual(after, func(id uint64) bool {
		if id == after {
			return true
		}
		x, _ := s.session(id)
		return f(x.view(id))
	})
}
