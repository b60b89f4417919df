package store

// Store is the replicated state; see API.
type Store struct{}
