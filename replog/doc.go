package replog
type Storage struct{}
