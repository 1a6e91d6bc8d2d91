"""Files of labeled solutions, problems and pools; trees and pairs made from them."""
